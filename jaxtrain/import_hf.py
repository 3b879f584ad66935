"""A Hugging Face model as a workdir: checkpoint of step 0, config, tokenizer.

    python -m jaxtrain.import_hf --model=HF_DIR --workdir=DIR [--dtype=bfloat16]

HF_DIR has a config.json, safetensors and the files of a tokenizer; a name such as owner/name is
downloaded. Then `generate` and `inspect` work on DIR, and a run starts from its weights with
`--config.init.from=DIR --config.init.load=params`.

With --add_token=TEXT (as often as needed) the tokenizer gets special tokens behind those that it
has, and the model a row for each: the mean of the known rows. No other row changes.
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import argparse
import dataclasses
import math
import pathlib
from typing import Any

import jax

from jaxtrain import config as config_lib
from jaxtrain import launch, startup_report, workdir
from jaxtrain.files import write_json, write_whole
from jaxtrain.hub import companions, vocabulary
from jaxtrain.hub.download import find_model
from jaxtrain.hub.load import abstract_model, check_fits, load_params
from jaxtrain.hub.model import HubModel
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.flops import num_params
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.parallel.sharding import TABLES, named_shardings
from jaxtrain.run_config import RunConfig, of_model
from jaxtrain.tokenizer.tokenizer import Tokenizer
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints

_LONGEST_ROW = 4096  # seq_len of the config that is written: a default, not a limit


def main() -> None:
    """Runs the command line."""
    options = _arguments().parse_args()
    directory = find_model(options.model, options.revision)
    model = HubModel(directory, allow_pickle=options.allow_pickle)
    config = import_model(
        model, options.workdir, options.model, options.dtype, options.add_token or []
    )
    print(
        f"{options.model}: {model.family.model_type}, {num_params(config.model):,} parameters in "
        f"{model.dtype.name} -> {options.workdir}, checkpoint of step 0"
    )


def import_model(
    model: HubModel,
    path: pathlib.Path,
    name: str,
    recipe: str | None = None,
    new_tokens: list[str] | None = None,
) -> RunConfig:
    """Makes a workdir of a model; returns the config that it has.

    Args:
      name: of the model, for the record.
      recipe: of precision; by default float32 for a float32 model, else bfloat16.
      new_tokens: special tokens to add.

    Raises:
      ValueError: where the workdir is in use or not empty, or the model does not fit together;
        nothing is written then.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"--workdir={path} is there already; give one that is new or empty.")
    tokenizer = companions.read_tokenizer(model.directory)
    num_known, tokenizer = _extended(model, tokenizer, new_tokens or [])
    abstract, axes = target(model.config)
    check_fits(model, abstract, axes)  # before anything is written
    params = load_params(model, abstract, axes)
    if new_tokens:
        params = vocabulary.add_tokens(params, num_known, len(new_tokens))
    shape = dataclasses.replace(model.config, vocab_size=params["embedding_VD"].shape[0])
    config = _run_config(shape, recipe or model.recipe)
    with workdir.hold(path):
        _write_companions(model, path, config, tokenizer, bool(new_tokens))
        where = path / workdir.CHECKPOINTS
        with Checkpoints(where, CheckpointConfig(), compress=False) as checkpoints:
            metadata = _metadata(config, model, name, tokenizer)
            checkpoints.save(0, {"params": params}, metadata)
    return config


def _extended(
    model: HubModel, tokenizer: Tokenizer | None, new_tokens: list[str]
) -> tuple[int, Tokenizer | None]:
    """(ids that the tokenizer has so far, the tokenizer with the new tokens)."""
    if tokenizer is None:
        if new_tokens:
            raise ValueError(f"--add_token needs a tokenizer, and {model.directory} has none.")
        return model.config.vocab_size, None
    known = tokenizer.vocab_size
    if known > model.config.vocab_size:
        raise ValueError(
            f"{model.directory}: the tokenizer has {known} ids, but vocab_size="
            f"{model.config.vocab_size}; the files are of different models."
        )
    return known, tokenizer.with_special_tokens(new_tokens) if new_tokens else tokenizer


def target(config: ModelConfig) -> tuple[Any, Any]:
    """Where parameters go: their shapes on as many devices as divide them, and their letters."""
    parts = abstract_model(config)
    num_devices = math.gcd(jax.local_device_count(), config.d_model)
    mesh = make_mesh(MeshConfig(data=1, fsdp=num_devices), jax.local_devices()[:num_devices])
    where = named_shardings(parts.axes, TABLES["zero3"].params, mesh)
    shapes = jax.tree.map(
        lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at),
        parts.params,
        where,
    )
    return shapes, parts.axes


def _run_config(shape: ModelConfig, recipe: str) -> RunConfig:
    """A run of this model in rows as long as it was made for."""
    config = of_model(shape, recipe)
    seq_len = min(shape.context_len or _LONGEST_ROW, _LONGEST_ROW)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, seq_len=seq_len))


def _metadata(
    config: RunConfig, model: HubModel, name: str, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    plain = config_lib.to_plain(config)
    sha256 = {} if tokenizer is None else {"tokenizer_sha256": tokenizer.sha256, "fingerprint": ""}
    return {
        "config": plain,
        "config_hash": workdir.config_hash(plain),
        "position": 0,
        "updates": 0,
        "num_branched_updates": 0,
        "data": {"imported": sha256} if sha256 else {},
        "heldout": {},
        "metrics": {},
        "versions": startup_report.versions(),
        # Of a directory the last name: where it lay here is nobody's business in a model card.
        "imported": {
            "name": model.directory.resolve().name if pathlib.Path(name).exists() else name,
            "model_type": model.family.model_type,
        },
    }


def _write_companions(
    model: HubModel,
    path: pathlib.Path,
    config: RunConfig,
    tokenizer: Tokenizer | None,
    is_changed: bool,
) -> None:
    write_json(path / workdir.CONFIG, config_lib.to_plain(config))
    files = companions.kept_files(model.directory)
    if is_changed and tokenizer is not None:
        files |= tokenizer.files
    for name, content in files.items():
        with write_whole(path / name) as file:
            file.write(content)
    companions.keep_origin(model.directory, path)


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    parser.add_argument("--model", required=True, metavar="HF_DIR", help="directory, or owner/name")
    parser.add_argument("--workdir", required=True, metavar="DIR", type=launch.directory)
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="what the model computes in (config.precision.recipe); default: as its weights are. "
        "Parameters are float32 in any case",
    )
    parser.add_argument("--revision", metavar="NAME", help="of a model on the hub")
    parser.add_argument(
        "--add_token", action="append", metavar="TEXT", help="a special token to add; repeatable"
    )
    parser.add_argument(
        "--allow_pickle",
        action="store_true",
        help="read pickled weights where there are no safetensors (by torch, tensors only)",
    )
    return parser


if __name__ == "__main__":
    launch.run(main)
