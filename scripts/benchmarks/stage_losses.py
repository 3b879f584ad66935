"""What the loss of each post-training stage costs, as a ratio to cross-entropy on the same rows.

    python scripts/benchmarks/stage_losses.py [--rounds 7] [--vocab_size 8192] [--recipe float32]

Every variant is the compiled gradient of a loss over one model and batch; they take one step per
round, in turn, so that all see the same machine. Prints CPU and wall seconds per step (medians)
and tokens per second relative to cross-entropy. "live" has a reference model in the same step, so
it does 4/3 of the work of one with cached log-probabilities.

The work: width 256, 6 layers, 8/4 heads of 32, feed-forward 704, batch 8 × 512; rows of eight
answers of 64 tokens, of which half are trained.
"""

import argparse
import dataclasses
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxtrain.losses.preference import PreferenceConfig, preference
from jaxtrain.losses.reward import RewardConfig, reward
from jaxtrain.losses.xent import XentConfig, cross_entropy
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.types import AnswerBatch, Batch

NUM_ROWS, LENGTH, ANSWER_LEN = 8, 512, 64


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="The loss of each stage beside cross-entropy.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--vocab_size", type=int, default=8192)
    parser.add_argument("--recipe", default="float32")
    options = parser.parse_args()
    variants = make_variants(options.vocab_size, options.recipe)
    secs = {name: [] for name in variants}
    for _ in range(options.rounds):
        for name, step in variants.items():
            cpu, wall = time.process_time(), time.perf_counter()
            jax.block_until_ready(step())
            secs[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)]
        for name, rows in secs.items()
    }
    for name, (cpu, wall) in medians.items():
        ratio = medians["xent"][0] / cpu
        print(f"{name:14} {cpu:7.3f} s CPU {wall:7.3f} s wall   tokens/s ×{ratio:.3f}")


def make_variants(vocab_size: int, recipe: str) -> dict:
    """Compiled steps by name."""
    config = ModelConfig(
        vocab_size=vocab_size,
        d_model=256,
        num_layers=6,
        num_heads=8,
        num_kv_heads=4,
        head_dim=32,
        d_ff=704,
    )
    plain, batch = make_batches(vocab_size)
    scorer = dataclasses.replace(config, scalar_head=True)
    return {
        "xent": compiled(cross_entropy(XentConfig()), config, recipe, plain),
        "dpo, cached": compiled(preference(PreferenceConfig()), config, recipe, batch),
        "orpo": compiled(preference(PreferenceConfig(kind="orpo")), config, recipe, batch),
        "dpo, live": compiled(preference(PreferenceConfig()), config, recipe, batch, live=True),
        "reward": compiled(reward(RewardConfig()), scorer, recipe, batch),
    }


def make_batches(vocab_size: int) -> tuple[Batch, AnswerBatch]:
    """Random tokens in rows of pairs."""
    num_answers = LENGTH // ANSWER_LEN
    ids = np.random.default_rng(0).integers(0, vocab_size, (NUM_ROWS, LENGTH)).astype(np.int32)
    positions = np.tile(np.arange(ANSWER_LEN, dtype=np.int32), (NUM_ROWS, num_answers))
    segments = np.repeat(np.arange(1, num_answers + 1, dtype=np.int32), ANSWER_LEN)
    weights = (positions >= ANSWER_LEN // 2).astype(np.float32)
    plain = Batch(ids, np.roll(ids, -1, 1), weights, positions, np.tile(segments, (NUM_ROWS, 1)))
    groups = np.repeat(np.arange(1, num_answers // 2 + 1, dtype=np.int32), 2)
    zeros = np.zeros((NUM_ROWS, num_answers), np.float32)
    batch = AnswerBatch(plain, np.tile(groups, (NUM_ROWS, 1)), zeros, zeros)
    return jax.tree.map(jnp.asarray, (plain, batch))


def compiled(loss, config, recipe: str, batch, live: bool = False):
    """A step without arguments that makes sums and gradients."""
    model = Decoder(config, rngs=nnx.Rngs(0), recipe=get_recipe(recipe))
    structure, params = nnx.split(model)

    def sums_and_grads(params, reference, batch):
        frozen = {"reference": nnx.merge(structure, reference)} if live else {}

        def loss_sum(params):
            sums = loss(nnx.merge(structure, params), frozen, batch, None)
            return sums.loss_sum, sums

        return jax.grad(loss_sum, has_aux=True)(params)

    step = jax.jit(sums_and_grads).lower(params, params, batch).compile()
    return lambda: step(params, params, batch)


if __name__ == "__main__":
    main()
