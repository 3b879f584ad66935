"""Trains the same small model in several number formats and compares held-out losses.

    python scripts/benchmarks/precision_convergence.py --text FILE [FILE …] [--steps=500]
        [--seeds=3] [--size=small] [--variants=float32,bfloat16,…] [--json=FILE] [--plot=FILE.svg]

FILE is text, plain or gzipped; its bytes are the tokens. The last tenth is held out. Formats that
this machine lacks are emulated, with the same results. Each seed has its own initial weights and
batches, the same for every variant. Prints a table in Markdown: mean held-out loss over seeds, and
the gap to bfloat16 with the same seed, mean and largest, and the mean over the second half of the
run, which is less of chance. What the JSON file has of an earlier call
with the same settings is not trained again.
"""

import argparse
import dataclasses
import functools
import gzip
import hashlib
import os
import pathlib
import sys
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import jax
import numpy as np

from jaxtrain import config as config_lib
from jaxtrain import config_program, launch
from jaxtrain.files import read_json, write_json
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.precision.quantization import TENSORS, DelayedScaling
from jaxtrain.precision.quantize import E4M3, E5M2, largest
from jaxtrain.precision.recipe import training_recipe
from jaxtrain.run_config import RunConfig
from jaxtrain.types import Batch

#: Layers, width, feed-forward width, rows and bytes per row.
SIZES = {"tiny": (4, 64, 192, 8, 128), "small": (5, 192, 512, 8, 128)}
VARIANTS = {
    "float32": {"precision.recipe": "float32"},
    "bfloat16": {"precision.recipe": "bfloat16"},
    "float16": {"precision.recipe": "float16"},
    "fp8 current": {"precision.recipe": "fp8"},
    "fp8 delayed": {"precision.recipe": "fp8", "precision.scaling": "delayed"},
    "fp8 in every layer": {"precision.recipe": "fp8", "precision.exclude": ()},
    "fp8 with E4M3 gradients": {"precision.recipe": "fp8"},
    # What a scale is for: gradients are cast as they are.
    "fp8 with unscaled E5M2 gradients": {
        "precision.recipe": "fp8",
        "precision.scaling": "delayed",
    },
    "fp8 with unscaled E4M3 gradients": {
        "precision.recipe": "fp8",
        "precision.scaling": "delayed",
    },
    "fp8_block": {"precision.recipe": "fp8_block"},
    "mxfp8": {"precision.recipe": "mxfp8"},
    "nvfp4": {"precision.recipe": "nvfp4"},
    "nvfp4 with stochastic rounding": {
        "precision.recipe": "nvfp4",
        "precision.grad_rounding": "stochastic",
    },
    "bfloat16 with 8-bit AdamW": {"precision.recipe": "bfloat16", "optim.state_format": "8bit"},
}
HELD_OUT_BATCHES = 8


def main() -> None:
    """Trains every variant with every seed and prints the table."""
    parser = launch.parser(__doc__)
    parser.add_argument("--text", nargs="+", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", choices=tuple(SIZES), default="small")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path)
    options = parser.parse_args()
    _check_usable(parser, options)
    names = options.variants.split(",")
    text = b"".join(read(path) for path in options.text)
    least = 10 * (SIZES[options.size][-1] + 2)  # the tenth that is held out has more than a row
    if len(text) < least:
        parser.error(f"--text has {len(text)} bytes; it needs {least} or more")
    settings = {key: getattr(options, key) for key in ("steps", "seeds", "size")}
    settings["text"] = hashlib.sha256(text).hexdigest()
    found = read_json(options.json) if options.json and options.json.exists() else {}
    if found and found["settings"] != settings:
        parser.error(
            f"--json={options.json} is of other settings: {found['settings']}; name another"
        )
    curves = found.get("curves", {})
    for name in names:
        if name in curves:
            continue
        start = time.perf_counter()
        curves[name] = [
            train(run_config(name, options.size, options.steps, seed), name, text)
            for seed in range(options.seeds)
        ]
        losses = ", ".join(f"{curve[-1][1]:.4f}" for curve in curves[name])
        print(f"{name}: {losses} ({time.perf_counter() - start:.0f} s)", file=sys.stderr)
        if options.json:
            write_json(options.json, {"settings": settings, "curves": curves})
    curves = {name: curves[name] for name in names}
    print(table(curves))
    if options.plot:
        plot(curves, options.plot)


def _check_usable(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    names = options.variants.split(",")
    if "bfloat16" not in names or not set(names) <= set(VARIANTS):
        parser.error(
            f"--variants={options.variants} must hold bfloat16 and only: {', '.join(VARIANTS)}"
        )
    for name in ("steps", "seeds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}={getattr(options, name)} must be at least 1")
    for name in ("json", "plot"):
        path = getattr(options, name)
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            parser.error(
                f"--{name}={path} cannot be written; name a file in a folder that is there"
            )


def read(path: pathlib.Path) -> bytes:
    """A file's bytes, unpacked."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def run_config(name: str, size: str, num_steps: int, seed: int) -> RunConfig:
    """The config of one run; of the data, only its shape is used."""
    layers, width, d_ff, rows, length = SIZES[size]
    c = config_lib.to_config_dict(RunConfig)
    c.model.update(
        vocab_size=256, num_layers=layers, d_model=width, num_heads=width // 32,
        num_kv_heads=width // 32, head_dim=32, d_ff=d_ff,
    )  # fmt: skip
    c.data.batch_size, c.data.seq_len = rows, length
    c.optim.lr, c.optim.warmup_steps = 2e-3, num_steps // 20
    c.loop.num_steps, c.loop.seed = num_steps, seed
    c.precision.emulate = True
    for path, value in VARIANTS[name].items():
        section, key = path.split(".")
        c[section][key] = value
    return config_lib.resolve(RunConfig, c)


def train(config: RunConfig, name: str, text: bytes) -> list[tuple[int, float]]:
    """(step, held-out loss in nats per byte) ten times over the run."""
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    program = config_program.make_program(config, cross_entropy(config.loss), mesh)
    if gradient_dtype(name) is E4M3:
        recipe = training_recipe(config.precision)
        assert recipe.quantization is not None
        trap = dataclasses.replace(recipe.quantization, gradient_dtype=E4M3)
        recipe = dataclasses.replace(recipe, quantization=trap)
        program = dataclasses.replace(
            program, make_model=config_program.model_maker(config, recipe=recipe)
        )
    unscale = jax.jit(functools.partial(without_scale, gradient_dtype(name)), donate_argnums=0)
    ids = np.frombuffer(text, np.uint8).astype(np.int32)
    trained, held_out = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]
    fixed = [batch(config, held_out, (1, index)) for index in range(HELD_OUT_BATCHES)]
    state, curve, num_steps = program.init(), [], config.loop.num_steps
    for step in range(1, num_steps + 1):
        rows = program.put(batch(config, trained, (config.loop.seed, step)), config.data.batch_size)
        if "unscaled" in name:
            state = state._replace(nontrained=unscale(state.nontrained))
        state, metrics = program.train_step(state, {}, rows)
        if step % max(1, num_steps // 10) == 0 or step == num_steps:
            assert int(metrics["skipped_in_row"]) == 0, f"{name}: updates are skipped at {step}"
            curve.append((step, evaluate(program, state, fixed)))
    return curve


def gradient_dtype(name: str) -> type:
    """What gradients are cast to."""
    return E4M3 if "E4M3 gradients" in name else E5M2


def without_scale(dtype: type, nontrained: Any) -> Any:
    """The state with such histories of gradients that their scale is 1."""

    def one(path: Any, leaf: jax.Array) -> jax.Array:
        if DelayedScaling.HISTORY not in jax.tree_util.keystr(path):
            return leaf
        return leaf.at[..., TENSORS.index("gradient"), :].set(largest(dtype))

    return jax.tree_util.tree_map_with_path(one, nontrained)


def batch(config: RunConfig, ids: np.ndarray, seed: tuple[int, int]) -> Batch:
    """Rows from random places."""
    rows, length = config.data.batch_size, config.data.seq_len
    starts = np.random.default_rng(seed).integers(0, len(ids) - length, rows)
    windows = ids[starts[:, None] + np.arange(length + 1)]
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    ones = np.ones((rows, length), np.int32)
    return Batch(windows[:, :-1], windows[:, 1:], ones.astype(np.float32), positions, ones)


def evaluate(program, state, batches: list[Batch]) -> float:
    """Nats per byte on fixed rows."""
    sums = [program.eval_step(state, {}, program.put(each, len(each.inputs))) for each in batches]
    return float(sum(s.loss_sum for s in sums) / sum(s.weight_sum for s in sums))


def table(curves: dict[str, list[list[tuple[int, float]]]]) -> str:
    """Held-out losses at the end and gaps there and over the second half, in Markdown."""
    base = np.asarray(curves["bfloat16"])[..., 1]
    head = ("recipe", "held-out loss", "gap to bfloat16", "largest of a seed", "over the last half")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, of_seeds in curves.items():
        losses = np.asarray(of_seeds)[..., 1]
        gaps = losses / base - 1
        largest = max(gaps[:, -1], key=abs)
        half = gaps[:, gaps.shape[1] // 2 :].mean()
        lines.append(
            f"| {name} | {losses[:, -1].mean():.4f} | {gaps[:, -1].mean():+.2%} | {largest:+.2%} | "
            f"{half:+.2%} |"
        )
    return "\n".join(lines)


def plot(curves: dict[str, list[list[tuple[int, float]]]], path: pathlib.Path) -> None:
    """Gaps over the run, mean of the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    base = np.asarray(curves["bfloat16"])[..., 1]
    for name, of_seeds in curves.items():
        found = np.asarray(of_seeds)
        gap = ((found[..., 1] - base) / base).mean(axis=0) * 100
        axes.plot(found[0, :, 0], gap, label=name)
    axes.set(xlabel="step", ylabel="held-out loss, % above bfloat16")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    launch.run(main)
