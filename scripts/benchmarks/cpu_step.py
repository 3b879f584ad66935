"""One training step on a CPU, side by side: jaxtrain, a hand-written JAX step, Hugging Face.

    python scripts/benchmarks/cpu_step.py [--rounds 5] [--without huggingface]

Every variant lives in a process of its own (the allocator is a matter of the process) and takes
one step per round, in turn, so that all see the same machine. Prints wall and CPU seconds per step
and ratios of medians. The Hugging Face variant needs the `reference` extra.

The work: vocabulary 8192, width 256, 6 layers, 8/4 heads of 32, feed-forward 704 (8.6M
parameters), batch 8 × 512, float32, AdamW (0.9, 0.95, weight decay 0.1), gradients clipped at 1.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

V, D, L, N, K, H, F, B, T = 8192, 256, 6, 8, 4, 32, 704, 8, 512
LR, B1, B2, EPS, DECAY, CLIP = 3e-4, 0.9, 0.95, 1e-8, 0.1, 1.0


def tokens():
    """The batch: inputs and targets."""
    import numpy as np

    ids = np.random.default_rng(0).integers(0, V, (B, T + 1)).astype(np.int32)
    return ids[:, :-1], ids[:, 1:]


def bare(unroll: int):
    """A plain JAX step as one writes it by hand: scanned layers, optax, nothing tuned."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    def init(key):
        keys = iter(jax.random.split(key, 16))

        def draw(*shape):
            return jax.random.normal(next(keys), shape) * 0.02

        layers = {
            "q": draw(L, D, N, H), "k": draw(L, D, K, H), "v": draw(L, D, K, H),
            "o": draw(L, N, H, D), "gate": draw(L, D, F), "up": draw(L, D, F),
            "down": draw(L, F, D), "norm1": jnp.ones((L, D)), "norm2": jnp.ones((L, D)),
        }  # fmt: skip
        return {"embed": draw(V, D), "layers": layers, "norm": jnp.ones(D), "head": draw(D, V)}

    def norm(x, scale):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale

    frequencies = 1e4 ** (-jnp.arange(0, H, 2) / H)
    angles = jnp.arange(T)[:, None] * frequencies
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]

    def rotate(x):
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def layer(x, p):
        h = norm(x, p["norm1"])
        q, k, v = (jnp.einsum("btd,dnh->btnh", h, p[name]) for name in "qkv")
        o = jax.nn.dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + jnp.einsum("btnh,nhd->btd", o, p["o"])
        h = norm(x, p["norm2"])
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], None

    def loss(params, inputs, targets):
        x, _ = jax.lax.scan(layer, params["embed"][inputs], params["layers"], unroll=unroll)
        logits = norm(x, params["norm"]) @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    optimizer = optax.chain(
        optax.clip_by_global_norm(CLIP), optax.adamw(LR, B1, B2, EPS, weight_decay=DECAY)
    )

    @jax.jit
    def step(params, state, inputs, targets):
        value, grads = jax.value_and_grad(loss)(params, inputs, targets)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    rows, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    params = jax.jit(init, out_shardings=whole)(jax.random.key(0))
    state = jax.jit(optimizer.init, out_shardings=whole)(params)
    inputs, targets = (jax.device_put(x, rows) for x in tokens())

    def run():
        nonlocal params, state
        params, state, value = step(params, state, inputs, targets)
        return float(value)

    return run


def huggingface():
    """transformers' Llama under torch.compile."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    config = LlamaConfig(
        vocab_size=V, hidden_size=D, intermediate_size=F, num_hidden_layers=L,
        num_attention_heads=N, num_key_value_heads=K, head_dim=H, use_cache=False,
        max_position_embeddings=T, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LR, betas=(B1, B2), eps=EPS, weight_decay=DECAY, fused=True
    )
    compiled = torch.compile(model)
    inputs, targets = (torch.from_numpy(x).long() for x in tokens())

    def run():
        optimizer.zero_grad(set_to_none=True)
        logits = compiled(inputs).logits
        value = torch.nn.functional.cross_entropy(logits.view(-1, V), targets.reshape(-1))
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return float(value.detach())

    return run


def jaxtrain():
    """The program that the launchers run, on the devices that they set up."""
    import jax
    import numpy as np

    from jaxtrain import config as config_lib
    from jaxtrain import config_program, stage
    from jaxtrain.data.config import SourceConfig
    from jaxtrain.losses.xent import cross_entropy
    from jaxtrain.run_config import RunConfig
    from jaxtrain.types import Batch

    c = config_lib.to_config_dict(RunConfig)
    model = {
        "vocab_size": V, "d_model": D, "num_layers": L, "num_heads": N, "num_kv_heads": K,
        "head_dim": H, "d_ff": F,
    }  # fmt: skip
    for name, value in model.items():
        c.model[name] = value
    c.data.batch_size, c.data.seq_len, c.data.packing = B, T, "concat"
    c.data.sources = {"random": config_lib.to_config_dict(SourceConfig(path="unused"))}
    c.optim.schedule, c.optim.lr, c.loop.num_steps = "constant", LR, 1000
    c.checkpoint.save_every, c.precision.recipe = 1000, "float32"
    config = config_lib.resolve(RunConfig, c)
    mesh, _ = stage.start_devices(config)
    program = config_program.make_program(config, cross_entropy(config.loss), mesh)
    inputs, targets = tokens()
    ones = np.ones((B, T), np.int32)
    positions = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T)).copy()
    batch = program.put(Batch(inputs, targets, ones.astype(np.float32), positions, ones), B)
    state = program.init()

    def run():
        nonlocal state
        state, metrics = program.train_step(state, {}, batch)
        return float(jax.device_get(metrics["loss"]))

    return run


def work(variant: str) -> None:
    """A worker: compiles, then takes a step and answers (wall, CPU seconds, loss) for each line."""
    makers = {
        "plain JAX": lambda: bare(unroll=1),
        "plain JAX, same settings": lambda: bare(unroll=L),
        "jaxtrain": jaxtrain,
        "Hugging Face, torch.compile": huggingface,
    }
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    run = makers[variant]()
    for _ in range(2):
        run()
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        value = run()
        print(
            json.dumps([time.perf_counter() - wall, time.process_time() - cpu, value]), file=answers
        )


def start(variant: str) -> subprocess.Popen:
    """Starts a worker under the settings of its variant."""
    root = pathlib.Path(__file__).resolve().parents[2]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root)}
    environment.pop("GLIBC_TUNABLES", None)
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    if variant in ("jaxtrain", "plain JAX, same settings"):
        environment["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    if variant == "plain JAX, same settings":
        environment["JAX_NUM_CPU_DEVICES"] = str(len(os.sched_getaffinity(0)))
    return subprocess.Popen(
        [sys.executable, __file__, "--work", variant],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=environment,
    )  # fmt: skip


def main() -> None:
    """Runs the rounds and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", nargs="*", default=[], choices=["huggingface"])
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    variants = ["jaxtrain", "plain JAX, same settings", "plain JAX"]
    if "huggingface" not in options.without:
        variants.append("Hugging Face, torch.compile")
    workers, results = {variant: start(variant) for variant in variants}, {}
    for _ in range(options.rounds):
        for variant, worker in workers.items():
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write("step\n")
            worker.stdin.flush()
            results.setdefault(variant, []).append(json.loads(worker.stdout.readline()))
    for worker in workers.values():
        worker.kill()
    print(f"{'':30}{'wall s':>8}{'CPU s':>8}   jaxtrain / this: wall, CPU")
    ours = [statistics.median(column) for column in zip(*results["jaxtrain"], strict=True)]
    for variant, rows in results.items():
        wall, cpu, value = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{variant:30}{wall:8.2f}{cpu:8.2f}   {ours[0] / wall:.2f}  {ours[1] / cpu:.2f}"
              f"   (loss {value:.3f})")  # fmt: skip


if __name__ == "__main__":
    main()
