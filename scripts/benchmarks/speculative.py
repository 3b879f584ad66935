"""What drafts give: tokens accepted, passes of the model saved, and the speed of it all.

    python scripts/benchmarks/speculative.py [--shared=../shared] [--steps 300] [--rounds 9]

Trains a model with one module of multi-token prediction, and a smaller model as another draft, on
most of tiny Shakespeare (BPE of 512 ids, float32). Both then write on from lines that they have not
seen: prompts of 32 tokens, 96 more, one at a time and four at a time, greedy and sampled. Every
answer with a draft must be that of plain decoding. Rounds alternate between the drafts; the least
CPU time of each is compared.

Passes of the model for a token follow from what is accepted, and hold on any machine. What a pass
costs does not: on a GPU with few requests one of five tokens costs about as much as one of one,
on a CPU more.
"""

import argparse
import gzip
import pathlib
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()

import jax
import numpy as np
import optax
from flax import nnx

from jaxtrain.decode.draft import Draft, DraftModel
from jaxtrain.decode.engine import Engine, Request
from jaxtrain.decode.mtp import DraftModules
from jaxtrain.decode.sampling import Sampling
from jaxtrain.losses.xent import XentConfig, cross_entropy
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import Split
from jaxtrain.optim.build import Optimizer
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.tokenizer.training import Training
from jaxtrain.train.program import Program
from jaxtrain.types import Batch

VOCAB, BATCH, LENGTH, PEAK_RATE = 512, 8, 128, 2e-3
PROMPT_TOKENS, NEW_TOKENS, NUM_PROMPTS = 32, 96, 8
MODEL = ModelConfig(
    vocab_size=VOCAB, num_layers=6, d_model=192, num_heads=6, num_kv_heads=6, head_dim=32, d_ff=512,
    num_mtp_layers=1,
)  # fmt: skip
SMALLER = ModelConfig(
    vocab_size=VOCAB, num_layers=1, d_model=96, num_heads=3, num_kv_heads=3, head_dim=32, d_ff=256,
)  # fmt: skip


def read_ids(shared: pathlib.Path) -> np.ndarray:
    """The whole text in ids of a tokenizer that is learnt from it."""
    with gzip.open(shared / "data" / "tinyshakespeare" / "input.txt.gz", "rt") as file:
        text = file.read()
    tokenizer = Training("bpe", VOCAB, num_reserved=0).train(text.split("\n\n"))
    return np.asarray(tokenizer.encode(text), np.int32)


def train(config: ModelConfig, ids: np.ndarray, num_steps: int) -> tuple[Split, Any]:
    """(structure, parameters) of a model; says how it went."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, PEAK_RATE, num_steps // 10, num_steps)
    steps = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))

    def make_model(rng: jax.Array) -> Decoder:
        recipe = get_recipe("float32")
        return Decoder(config, rngs=nnx.Rngs(rng), recipe=recipe, isolated=False)

    program = Program(
        make_model=make_model,
        loss=cross_entropy(XentConfig()),
        make_optimizer=lambda axes: Optimizer(steps, schedule, "adamw"),
        mesh=make_mesh(MeshConfig(), jax.devices()[:1]),
    )
    state, rng, start = program.init(), np.random.default_rng(0), time.perf_counter()
    metrics: Any = {}
    for _ in range(num_steps):
        at = rng.integers(0, len(ids) - LENGTH - 1, BATCH)
        rows = np.stack([ids[each : each + LENGTH + 1] for each in at])
        ones = np.ones((BATCH, LENGTH), np.int32)
        batch = Batch(
            inputs=rows[:, :-1],
            targets=rows[:, 1:],
            loss_weights=ones.astype(np.float32),
            positions=np.cumsum(ones, axis=1, dtype=np.int32) - 1,
            segment_ids=ones,
        )
        state, metrics = program.train_step(state, {}, program.put(batch, BATCH))
        metrics = jax.device_get(metrics)
    names = ("loss", *(name for name in metrics if name.startswith("mtp")))
    said = ", ".join(f"{name} {float(metrics[name]):.2f}" for name in names)
    secs = time.perf_counter() - start
    print(f"{config.num_layers} layers, {num_steps} steps in {secs:.0f} s: {said}", flush=True)
    return program.model, state.params


def answers(engine: Engine, prompts: np.ndarray, temperature: float) -> list[list[int]]:
    """What the engine writes to each prompt."""
    found: list[list[int]] = [[] for _ in prompts]
    requests = (
        Request(row.tolist(), NEW_TOKENS, Sampling(temperature, seed=number))
        for number, row in enumerate(prompts)
    )
    for emitted in engine.generate(requests):
        found[emitted.request] += emitted.ids
    return found


def compare(
    engines: dict[str, Engine], prompts: np.ndarray, temperature: float, rounds: int
) -> None:
    """Prints a line for each draft; the first engine has none."""
    wanted = answers(next(iter(engines.values())), prompts, temperature)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    drafted = {}
    for name, engine in engines.items():
        before = np.array(engine.num_drafted)
        if answers(engine, prompts, temperature) != wanted:  # and compiles
            raise RuntimeError(f"{name}: other answers than plain decoding")
        drafted[name] = np.array(engine.num_drafted) - before
    for _ in range(rounds):
        for name, engine in engines.items():
            cpu, wall = time.process_time(), time.perf_counter()
            answers(engine, prompts, temperature)
            times[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    num_tokens = sum(map(len, wanted))
    plain, *_ = (np.min(each, axis=0) for each in times.values())
    for name, each in times.items():
        accepted, proposed = drafted[name]
        cpu, wall = np.min(each, axis=0)
        share = f"{accepted / proposed:9.0%}" if proposed else f"{'':9}"
        print(
            f"{name:<22}{engines[name].num_slots:>6}{temperature:>13.1f}{share}"
            f"{1 - accepted / num_tokens:>17.2f}{num_tokens / wall:>10.0f}{plain[1] / wall:>8.2f}"
            f"{plain[0] / cpu:>7.2f}",
            flush=True,
        )


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", type=pathlib.Path, default=pathlib.Path("../shared"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    ids = read_ids(options.shared)
    held_out = len(ids) * 9 // 10
    model, params = train(MODEL, ids[:held_out], options.steps)
    smaller, of_smaller = train(SMALLER, ids[:held_out], options.steps)
    starts = np.linspace(held_out, len(ids) - PROMPT_TOKENS, NUM_PROMPTS).astype(int)
    prompts = np.stack([ids[start : start + PROMPT_TOKENS] for start in starts])
    drafts: dict[str, Draft | None] = {
        "none": None,
        "module, 1 token": DraftModules(1),
        "module, 2 tokens": DraftModules(2),
        "module, 4 tokens": DraftModules(4),
        "smaller, 2 tokens": DraftModel(smaller, of_smaller, 2),
        "smaller, 4 tokens": DraftModel(smaller, of_smaller, 4),
    }
    print(
        f"{'draft':<22}{'slots':>6}{'temperature':>13}{'accepted':>9}{'passes per token':>17}"
        f"{'tokens/s':>10}{'ratio':>8}{'CPU':>7}"
    )
    for num_slots in (1, 4):
        max_len = PROMPT_TOKENS + NEW_TOKENS
        engines = {
            name: Engine(model, params, max_len=max_len, num_slots=num_slots, draft=draft)
            for name, draft in drafts.items()
        }
        for temperature in (0.0, 0.8):
            compare(engines, prompts, temperature, options.rounds)


if __name__ == "__main__":
    main()
