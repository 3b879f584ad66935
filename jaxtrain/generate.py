"""A sample from a trained model, from its workdir alone: config, tokenizer and parameters.

Each token costs a full forward pass over the text so far, so this is for short samples.

    python -m jaxtrain.generate --workdir=DIR [--step=N] [--prompt="def "] [--num_tokens=64]
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import argparse
import json
import math
import pathlib

import jax
import jax.numpy as jnp

from jaxtrain import config as config_lib
from jaxtrain import launch, stage, workdir
from jaxtrain.decode.sample import sample
from jaxtrain.models.parameters import split
from jaxtrain.run_config import RunConfig
from jaxtrain.tokenizer.bpe import BOS, EOS, Tokenizer
from jaxtrain.train.checkpoint import restore
from jaxtrain.train.checkpoint_read import read_record, whole_steps

_MAX_TOKENS = 65_536  # each costs a pass over all of them


def main() -> None:
    """Runs the command line."""
    options = _arguments().parse_args()
    text, step = generate(
        options.workdir,
        options.step,
        options.prompt,
        options.num_tokens,
        options.temperature,
        options.seed,
    )
    if options.json:
        print(json.dumps({"step": step, "prompt": options.prompt, "text": text}))
    else:
        print(f"{options.prompt}{text}")


def generate(
    path: pathlib.Path,
    step: int | None,
    prompt: str,
    num_tokens: int,
    temperature: float,
    seed: int,
) -> tuple[str, int]:
    """(text that follows the prompt, step of the checkpoint used).

    Raises:
      ValueError: where the workdir has no such checkpoint or tokenizer, or its model is an encoder.
    """
    if not (1 <= num_tokens <= _MAX_TOKENS and 0 <= temperature < math.inf and 0 <= seed < 2**32):
        raise ValueError(
            f"--num_tokens={num_tokens} must be from 1 to {_MAX_TOKENS}, --temperature="
            f"{temperature} finite and at least 0, --seed={seed} in [0, 2**32)."
        )
    directory = path / workdir.CHECKPOINTS
    steps = whole_steps(directory)
    if not steps:
        raise ValueError(f"--workdir={path} has no whole checkpoint; train one first.")
    step = steps[-1] if step is None else step
    plain = read_record(directory, step).metadata["config"]
    config = config_lib.resolve(RunConfig, plain)
    if config.model.bidirectional:
        raise ValueError(f"--workdir={path} holds an encoder, which does not write text.")
    if not (path / workdir.TOKENIZER).is_file():
        raise ValueError(f"{path / workdir.TOKENIZER} is missing; it tells what ids mean.")
    tokenizer = Tokenizer.load(path / workdir.TOKENIZER)

    model = split(jax.eval_shape(stage.model_maker(config), jax.random.key(0)))
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), model.params
    )
    params = restore(directory, step, {"params": abstract}, "params.")["params"]

    def logits(row):
        positions = jnp.arange(row.shape[1], dtype=jnp.int32)[None]
        return model.bind(params, {})(row, positions)[..., : tokenizer.vocab_size]

    ids = [tokenizer.control_id(BOS), *tokenizer.encode(prompt).tolist()]
    stop_id = tokenizer.control_id(EOS)
    rng = jax.random.key(seed)
    return tokenizer.decode(sample(logits, ids, num_tokens, rng, temperature, stop_id)), step


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    parser.add_argument("--workdir", required=True, metavar="DIR", type=launch.directory)
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint; default: the latest")
    parser.add_argument("--prompt", default="", help="text to continue; default: a new document")
    parser.add_argument("--num_tokens", type=int, default=64, metavar="N", help="at most (64)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="X", help="0 is the likeliest (0.8)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    launch.run(main)
