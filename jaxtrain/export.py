"""A checkpoint as a Hugging Face directory, for `transformers` and inference engines.

    python -m jaxtrain.export --workdir=DIR [--step=N] --out=HF_DIR [--dtype=bfloat16]

Writes config.json, generation_config.json, safetensors (with an index where there are several),
the tokenizer's files and chat template, and a model card with the run's data card and metrics.
Weights are cast from the float32 masters to --dtype; an imported model goes back bit for bit in
the dtype that it had. Needs no accelerator and little memory.
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import argparse
import dataclasses
import functools
import pathlib

import jax
import numpy as np

from jaxtrain import config as config_lib
from jaxtrain import launch, stage, workdir
from jaxtrain.files import read_json
from jaxtrain.hub import companions, families, save
from jaxtrain.hub.directory import CONFIG
from jaxtrain.hub.family import Family
from jaxtrain.hub.load import flatten
from jaxtrain.hub.model import logical_leaves
from jaxtrain.hub.model_card import model_card
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.parameters import split
from jaxtrain.run_config import RunConfig
from jaxtrain.train.checkpoint import check_structure
from jaxtrain.train.checkpoint_read import open_leaf, read_record, whole_steps

_DATA_CARD = "data_card.json"
_DEFAULT_DTYPE = "bfloat16"


def main() -> None:
    """Runs the command line."""
    options = _arguments().parse_args()
    summary = export(options.workdir, options.step, options.out, options.dtype, options.family)
    print(summary)


def export(
    path: pathlib.Path,
    step: int | None,
    out: pathlib.Path,
    dtype: str | None = None,
    model_type: str | None = None,
) -> str:
    """Writes the directory; returns a line that says what was written.

    Args:
      step: of the checkpoint; by default the latest whole one.
      dtype: of the weights; by default that of an imported model, else bfloat16.
      model_type: the family; by default that of an imported model, else the first that fits.

    Raises:
      ValueError: where there is no such checkpoint, no family computes what the model does, or
        `out` is there already; nothing is left at `out` then.
    """
    directory = path / workdir.CHECKPOINTS
    steps = whole_steps(directory)
    if not steps:
        raise ValueError(f"--workdir={path} has no whole checkpoint; train or import one first.")
    step = steps[-1] if step is None else step
    metadata = read_record(directory, step).metadata
    run = config_lib.resolve(RunConfig, metadata["config"])
    config = dataclasses.replace(run.model, context_len=run.model.context_len or run.data.seq_len)
    family = _family(path, config, model_type)
    dtype = dtype or _imported_dtype(path)
    parts = split(jax.eval_shape(stage.model_maker(run), jax.random.key(0)))
    check_structure(directory, step, {"params": parts.params}, "params.")
    shapes = {name: tuple(leaf.shape) for name, leaf in flatten(parts.params).items()}
    leaves = logical_leaves(flatten(parts.axes), shapes, config.vocab_size)
    card = path / workdir.CARD
    data_card = read_json(card) if card.is_file() else None
    files = companions.files_for_export(path)
    text = model_card(out.resolve().name, family, config, dtype, step, metadata, data_card)
    files["README.md"] = text.encode()
    if data_card is not None:
        files[_DATA_CARD] = card.read_bytes()
    with save.whole_directory(out) as part:
        num_bytes = save.save_model(
            part,
            family,
            config,
            dtype,
            functools.partial(_rows, directory, step),
            leaves,
            token_ids=companions.token_fields(path),
            generation=companions.origin(path, save.GENERATION),
            files=files,
        )
    size = f"{num_bytes / 1e6:,.1f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:,.2f} GB"
    return f"{path} step {step} -> {out}: {family.architecture}, {size} in {dtype}"


def _rows(directory: pathlib.Path, step: int, path: str, start: int, stop: int) -> np.ndarray:
    """Part of a parameter of a checkpoint."""
    return open_leaf(directory, step, f"params.{path}")[start:stop].read().result()


def _family(path: pathlib.Path, config: ModelConfig, model_type: str | None) -> Family:
    if model_type is not None:
        family = families.BY_MODEL_TYPE[model_type]
        lost = family.cannot_express(config)
        if lost:
            raise ValueError(f"--family={model_type} cannot express {'; '.join(lost)}.")
        return family
    imported = companions.origin(path, CONFIG)
    if imported is not None:
        family = families.family_of(imported, str(path / companions.HUB / CONFIG))
        if not family.cannot_express(config):
            return family
    return families.choose(config)


def _imported_dtype(path: pathlib.Path) -> str:
    imported = companions.origin(path, CONFIG) or {}
    name = imported.get("torch_dtype") or imported.get("dtype")
    return name if name in save.DTYPES else _DEFAULT_DTYPE


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    parser.add_argument("--workdir", required=True, metavar="DIR", type=launch.directory)
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint; default: the latest")
    parser.add_argument("--out", required=True, metavar="HF_DIR", type=launch.directory)
    parser.add_argument(
        "--dtype",
        choices=tuple(save.DTYPES),
        help=f"of the weights; default: as they were imported, else {_DEFAULT_DTYPE}",
    )
    parser.add_argument(
        "--family",
        choices=tuple(families.BY_MODEL_TYPE),
        help="default: as it was imported, else the first that computes the same",
    )
    return parser


if __name__ == "__main__":
    launch.run(main)
