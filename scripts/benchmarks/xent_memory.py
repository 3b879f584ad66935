"""Cross-entropy and its gradients: memory and time of the chunked form against the naive one.

    python scripts/benchmarks/xent_memory.py [--rounds 5] [--vocab 8192] [--batch 8] [--length 512]

Naive is what one writes by hand: float32 logits of the whole batch, differentiated by JAX. Memory
is what the compiled program reserves beside its arguments and results. Forms take turns, so that
all see the same machine; times are CPU seconds, and only their ratios say something about the code.
"""

import argparse
import statistics
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain import startup
from jaxtrain.losses.xent import XentConfig, cross_entropy
from jaxtrain.precision.recipe import get_recipe
from jaxtrain.types import Batch


def naive(h, w, targets):
    """Sum of the negative log-likelihoods, and how often the largest logit is the target's."""
    logits = jnp.einsum("btd,dv->btv", h, w, preferred_element_type=jnp.float32)
    logprobs = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(logprobs, targets[..., None], axis=-1)
    return jnp.sum(nll), jnp.sum(jnp.argmax(logits, axis=-1) == targets)


def chunked(chunk_tokens: int):
    """jaxtrain's loss on given hidden states and head."""
    loss = cross_entropy(XentConfig(chunk_tokens=chunk_tokens))

    def sums(h, w, targets):
        model = SimpleNamespace(
            config=SimpleNamespace(logit_softcap=None, vocab_size=w.shape[-1], trains_mtp=False),
            recipe=get_recipe("float32" if h.dtype == jnp.float32 else "bfloat16"),
            constrain=lambda x, letters: x,
            hidden=lambda *inputs: h,
            head_DV=lambda: w,
        )
        ones = jnp.ones(targets.shape, jnp.float32)
        found = loss(model, {}, Batch(targets, targets, ones, targets, targets), None)
        return found.loss_sum, found.metric_sums["accuracy"][0]

    return sums


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--chunks", type=int, nargs="*", default=[256, 512, 1024, 2048, 4096])
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    h = jnp.asarray(rng.normal(size=(options.batch, options.length, options.width)), options.dtype)
    w = jnp.asarray(rng.normal(size=(options.width, options.vocab)) * 0.05, options.dtype)
    targets = jnp.asarray(rng.integers(0, options.vocab, h.shape[:2]), jnp.int32)
    losses = {"naive": naive} | {f"chunks of {n} tokens": chunked(n) for n in options.chunks}

    programs = {}
    for kind in ("with gradients", "evaluation"):
        for name, loss in losses.items():
            gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
            form = gradients if kind == "with gradients" else loss
            programs[kind, name] = jax.jit(form).lower(h, w, targets).compile()
    megabytes = {
        key: program.memory_analysis().temp_size_in_bytes / 1e6 for key, program in programs.items()
    }
    seconds = cpu_seconds(programs, (h, w, targets), options.rounds)

    logits_mb = 4 * options.batch * options.length * options.vocab / 1e6
    print(f"{options.dtype}; float32 logits of the whole batch would take {logits_mb:.0f} MB")
    print(f"{'':40}{'memory MB':>10}{'/ naive':>9}{'CPU s':>9}{'/ naive':>9}")
    for kind, name in programs:
        memory, cpu = megabytes[kind, name], seconds[kind, name]
        print(
            f"{kind + ', ' + name:40}"
            f"{memory:10.1f}{memory / megabytes[kind, 'naive']:9.2f}"
            f"{cpu:9.3f}{cpu / seconds[kind, 'naive']:9.2f}"
        )


def cpu_seconds(programs, arguments, rounds: int):
    """Median per program over rounds in which each runs once."""
    seconds = {key: [] for key in programs}
    for _ in range(rounds + 1):
        for key, program in programs.items():
            start = time.process_time()
            jax.block_until_ready(program(*arguments))
            seconds[key].append(time.process_time() - start)
    return {key: statistics.median(taken[1:]) for key, taken in seconds.items()}  # warm


if __name__ == "__main__":
    startup.enter()
    main()
