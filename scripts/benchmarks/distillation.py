"""What the distillation loss costs beside cross-entropy, of given hidden states, in CPU time.

    python scripts/benchmarks/distillation.py

Value and gradient of each loss, interleaved, as a ratio to cross-entropy's, with the memory that it
takes; "naive" is autodiff from logits of the whole batch of both models.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import functools
import statistics
import time
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from jaxtrain.losses.distill import DistillConfig, distill
from jaxtrain.losses.teacher import topk_logprobs
from jaxtrain.losses.xent import XentConfig, cross_entropy
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.types import Batch, TeacherBatch

B, T, D, V, K = 8, 256, 256, 8192, 64
TEACHER_D = 512
ROUNDS = 5


class Given:
    """A model of given hidden states."""

    def __init__(self, h_BTD: jax.Array, w_DV: jax.Array) -> None:
        self.h_BTD, self.w_DV = h_BTD, w_DV
        self.config = SimpleNamespace(logit_softcap=None, vocab_size=V, trains_mtp=False)
        self.recipe = get_recipe("float32")

    def constrain(self, x: jax.Array, letters: str) -> jax.Array:
        """As it is."""
        return x

    def hidden(self, *inputs: Any) -> jax.Array:
        """As given."""
        return self.h_BTD

    def head_DV(self) -> jax.Array:
        """As given."""
        return self.w_DV


def naive(student: tuple[jax.Array, jax.Array], teacher: Given, batch: Batch) -> jax.Array:
    """Forward KL and cross-entropy from all logits."""
    logq = jax.nn.log_softmax(student[0] @ student[1])
    logp = jax.nn.log_softmax(teacher.h_BTD @ teacher.w_DV)
    nll = -jnp.take_along_axis(logq, batch.targets[..., None], -1)[..., 0]
    return jnp.sum(0.1 * nll + 0.9 * jnp.sum(jnp.exp(logp) * (logp - logq), -1))


def main() -> None:
    """Prints the table."""
    keys = jax.random.split(jax.random.key(0), 5)
    student = (
        jax.random.normal(keys[0], (B, T, D)),
        jax.random.normal(keys[1], (D, V)) / D**0.5,
    )
    teacher = Given(
        jax.random.normal(keys[2], (B, T, TEACHER_D)),
        2 * jax.random.normal(keys[3], (TEACHER_D, V)) / TEACHER_D**0.5,
    )
    ids = jnp.zeros((B, T), jnp.int32)
    targets = jax.random.randint(keys[4], (B, T), 0, V, jnp.int32)
    batch = Batch(ids, targets, jnp.ones((B, T)), ids, ids + 1)
    stored = TeacherBatch(
        batch, *jax.jit(functools.partial(topk_logprobs, teacher, k=K))(teacher.h_BTD)
    )

    def of(loss: Any, rows: Any, frozen: Any) -> Any:
        return lambda student: loss(Given(*student), frozen, rows, None).loss_sum

    here = {"teacher": teacher}
    losses = {
        "cross-entropy": of(cross_entropy(XentConfig()), batch, {}),
        "forward_kl": of(distill(DistillConfig()), batch, here),
        "reverse_kl": of(distill(DistillConfig(divergence="reverse_kl")), batch, here),
        "jensen_shannon": of(distill(DistillConfig(divergence="jensen_shannon")), batch, here),
        "forward_kl, τ = 2": of(distill(DistillConfig(temperature=2.0)), batch, here),
        f"forward_kl, top {K}": of(distill(DistillConfig(top_k=K)), batch, here),
        f"forward_kl, {K} stored": of(distill(DistillConfig()), stored, {}),
        "naive": lambda student: naive(student, teacher, batch),
    }
    steps = {
        name: jax.jit(jax.value_and_grad(loss)).lower(student).compile()
        for name, loss in losses.items()
    }
    secs: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            started = time.process_time()
            jax.block_until_ready(step(student))
            secs[name].append(time.process_time() - started)
    base = statistics.median(secs["cross-entropy"])
    print(f"B={B} T={T} D={D} (teacher {TEACHER_D}) V={V}, float32, {jax.default_backend()}")
    for name, step in steps.items():
        memory = step.memory_analysis()
        assert memory is not None
        ratio = statistics.median(secs[name]) / base
        print(f"{name:24} {ratio:5.2f} ×   {memory.temp_size_in_bytes / 1e6:6.0f} MB")


if __name__ == "__main__":
    main()
