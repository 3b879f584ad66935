"""A layer of experts, forward and backward: the ways to the experts against the dense one.

    python scripts/benchmarks/experts.py [--rounds 5] [--experts 16] [--chosen 2] [--length 512]

Ways take turns, so that all see the same machine; times are CPU seconds, and only their ratios say
something about the code. `work` is the arithmetic of the chosen experts against that of all: what a
way without overhead would take. Drops are of a router that was never trained.
"""

import argparse
import functools
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxtrain import measured, startup
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.moe import ExpertFeedForward
from jaxtrain.models.parameters import read_measured, split
from jaxtrain.precision.recipe import get_recipe


def make_pass(config: ModelConfig):
    """A jitted (params, x) -> (gradients, fraction dropped) of one layer."""

    def make():
        return ExpertFeedForward(
            config,
            rngs=nnx.Rngs(0),
            recipe=get_recipe("float32"),
            constrain=lambda x, letters: x,
        )

    parts = split(nnx.eval_shape(make))

    def loss(params, x):
        model = parts.bind(params, {}, measured.zeros(parts.measured))
        total = jnp.sum(jnp.square(model(x)))
        return total, read_measured(model)["dropped"] / (x.size // x.shape[-1])

    return jax.jit(jax.grad(loss, (0, 1), has_aux=True)), split(make()).params


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--expert_width", type=int, default=256)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--chosen", type=int, default=2)
    options = parser.parse_args()
    shape = functools.partial(
        ModelConfig,
        vocab_size=2,
        num_layers=1,
        d_model=options.width,
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        d_ff=options.expert_width,
        num_experts=options.experts,
        num_experts_per_token=options.chosen,
    )
    x = np.random.default_rng(0).standard_normal((options.batch, options.length, options.width))
    x = jnp.asarray(x, jnp.float32)
    ways = {kind: make_pass(shape(expert_dispatch=kind)) for kind in ("dense", "capacity",
                                                                      "dropless")}  # fmt: skip
    times: dict[str, list[float]] = {kind: [] for kind in ways}
    dropped = {}
    for _ in range(options.rounds + 1):
        for kind, (run, params) in ways.items():
            start = time.process_time()
            _, dropped[kind] = jax.block_until_ready(run(params, x))
            times[kind].append(time.process_time() - start)
    dense = statistics.median(times["dense"][1:])  # the first compiles
    print(f"work {options.chosen / options.experts:.3f}")
    for kind, found in times.items():
        ratio = statistics.median(found[1:]) / dense
        print(f"{kind:9} {ratio:.3f} × dense, dropped {float(dropped[kind]) / options.chosen:.3f}")


if __name__ == "__main__":
    startup.enter()
    main()
