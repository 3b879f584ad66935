"""Tokens per second of greedy decoding beside `transformers.generate`, the same shapes and prompts.

    scripts/benchmarks/decode.py [--rounds 3] [--model stories260k|120m]

Random weights in float32: speed does not depend on them. Both get prompts of 16 tokens and draw 64
more, no stop token. Rounds alternate between the two; the best of each is compared.
"""

import argparse
import dataclasses
import sys
import time
from typing import Any

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()

import jax
import numpy as np
from flax import nnx

from jaxtrain.decode.engine import Engine, Request
from jaxtrain.decode.sampling import Sampling
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import split
from jaxtrain.precision.recipe import get_recipe

MODELS = {
    "stories260k": ModelConfig(
        vocab_size=512, num_layers=5, d_model=64, num_heads=8, num_kv_heads=4, head_dim=8, d_ff=172,
        tied_head=True,
    ),
    "120m": ModelConfig(
        vocab_size=32_000, num_layers=12, d_model=768, num_heads=12, num_kv_heads=12, head_dim=64,
        d_ff=2048, tied_head=True,
    ),
}  # fmt: skip
PROMPT_TOKENS, NEW_TOKENS = 16, 64


def ours(config: ModelConfig, batch: int):
    """A function that decodes a batch of prompts."""

    def make(rng):
        return Decoder(config, rngs=nnx.Rngs(rng), recipe=get_recipe("float32"), isolated=False)

    model = split(jax.eval_shape(make, jax.random.key(0)))
    params = jax.jit(lambda rng: split(make(rng)).params)(jax.random.key(0))
    engine = Engine(
        model, params, max_len=PROMPT_TOKENS + NEW_TOKENS, num_slots=batch, chunk=NEW_TOKENS
    )

    def run(prompts: np.ndarray) -> int:
        requests = (Request(row.tolist(), NEW_TOKENS, Sampling(temperature=0.0)) for row in prompts)
        return sum(len(emitted.ids) for emitted in engine.generate(requests))

    return run


def theirs(config: ModelConfig, batch: int):
    """The same with transformers, as its documentation says to."""
    import torch
    import transformers

    model: Any = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.d_ff,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            tie_word_embeddings=config.tied_head,
        )
    ).eval()
    model.generation_config.eos_token_id = None

    def run(prompts: np.ndarray) -> int:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                pad_token_id=0,
            )
        return out.numel() - ids.numel()

    return run


def measure(run, prompts: np.ndarray) -> tuple[float, float]:
    """(wall seconds, CPU seconds) of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    count = run(prompts)
    assert count == len(prompts) * NEW_TOKENS, count
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", choices=MODELS, nargs="*", default=list(MODELS))
    options = parser.parse_args()
    print(f"{'model':<12}{'batch':>6}{'ours':>12}{'transformers':>14}{'ratio':>8}{'CPU ratio':>11}")
    for name in options.model:
        config = dataclasses.replace(MODELS[name])
        for batch in (1, 16):
            prompts = np.random.default_rng(0).integers(1, 500, (batch, PROMPT_TOKENS))
            runs = [ours(config, batch), theirs(config, batch)]
            for run in runs:
                run(prompts)
            times = [[measure(run, prompts) for run in runs] for _ in range(options.rounds)]
            best = [[min(r[k][i] for r in times) for i in range(2)] for k in range(2)]
            rates = [batch * NEW_TOKENS / each[0] for each in best]
            print(
                f"{name:<12}{batch:>6}{rates[0]:>8.0f} t/s{rates[1]:>10.0f} t/s"
                f"{rates[0] / rates[1]:>8.2f}{best[1][1] / best[0][1]:>11.2f}",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
