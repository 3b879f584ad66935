"""A checkpoint as a Hugging Face directory, for `transformers` and inference engines.

    python -m jaxtrain.export --workdir=DIR [--step=N] --out=HF_DIR [--dtype=bfloat16] [--adapter]

Writes config.json, generation_config.json, safetensors (with an index where there are several),
the tokenizer's files and chat template, and a model card with the run's data card and metrics.
Weights are cast from the float32 masters to --dtype; an imported model goes back bit for bit in
the dtype that it had. Needs no accelerator and little memory.

Of a LoRA run the base is read again and the updates are added to it; with --adapter the updates
alone are written, as a directory that the `peft` package loads onto the base.
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import argparse
import dataclasses
import functools
import pathlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxtrain import config_program, launch, stored_weights, workdir
from jaxtrain.files import read_json
from jaxtrain.hub import companions, families, peft, save
from jaxtrain.hub.directory import CONFIG
from jaxtrain.hub.family import Family
from jaxtrain.hub.model import logical_leaves
from jaxtrain.hub.model_card import model_card
from jaxtrain.hub.weights import Leaf
from jaxtrain.lora import adapters
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.parameters import Split, flatten, split
from jaxtrain.run_config import RunConfig, of_any_stage
from jaxtrain.train.checkpoint_read import open_leaf, read_record, whole_steps

_DATA_CARD = "data_card.json"
_DEFAULT_DTYPE = "bfloat16"


def main() -> None:
    """Runs the command line."""
    options = _arguments().parse_args()
    arguments = (options.workdir, options.step, options.out, options.dtype, options.family)
    if options.adapter:
        if options.base:
            raise ValueError("--base is read to merge, and --adapter does not; leave it out.")
        print(export_adapter(*arguments))
    else:
        print(export(*arguments, options.base))


class _Stored(NamedTuple):
    """A checkpoint and what its model is."""

    directory: pathlib.Path
    step: int
    metadata: Mapping[str, Any]
    run: RunConfig
    config: ModelConfig
    family: Family
    parts: Split  # abstract, on one device

    @property
    def leaves(self) -> dict[str, Leaf]:
        """Of the model without padding."""
        shapes = {name: tuple(leaf.shape) for name, leaf in flatten(self.parts.params).items()}
        return logical_leaves(flatten(self.parts.axes), shapes, self.config.vocab_size)


def export(
    path: pathlib.Path,
    step: int | None,
    out: pathlib.Path,
    dtype: str | None = None,
    model_type: str | None = None,
    base: str | None = None,
) -> str:
    """Writes the directory; returns a line that says what was written.

    Args:
      step: of the checkpoint; by default the latest whole one.
      dtype: of the weights; by default that of an imported model, else bfloat16.
      model_type: the family; by default that of an imported model, else the first that fits.
      base: where the frozen model of a LoRA run is now; by default where it was.

    Raises:
      ValueError: where there is no such checkpoint, no family computes what the model does, or
        `out` is there already; nothing is left at `out` then.
    """
    stored = _find(path, step, model_type)
    dtype = dtype or _imported_dtype(path)
    read = _reader(stored, base)
    card = path / workdir.CARD
    data_card = read_json(card) if card.is_file() else None
    files = companions.files_for_export(path)
    text = model_card(
        out.name, stored.family, stored.config, dtype, stored.step, stored.metadata, data_card
    )
    files["README.md"] = text.encode()
    if data_card is not None:
        files[_DATA_CARD] = card.read_bytes()
    with save.whole_directory(out) as part:
        num_bytes = save.save_model(
            part,
            stored.family,
            stored.config,
            dtype,
            read,
            stored.leaves,
            token_ids=companions.token_fields(path),
            generation=companions.generation_fields(
                path, is_trained=not stored.metadata.get("imported")
            ),
            files=files,
        )
    architecture = stored.family.architecture_of(stored.config)
    return f"{path} step {stored.step} -> {out}: {architecture}, {_size(num_bytes)} in {dtype}"


def export_adapter(
    path: pathlib.Path,
    step: int | None,
    out: pathlib.Path,
    dtype: str | None = None,
    model_type: str | None = None,
) -> str:
    """Writes the updates of a LoRA run as a PEFT directory; returns a line on what was written.

    Args:
      dtype: of the adapter; by default float32.
      model_type: the family of the model that the adapter is for; by default as in `export`.

    Raises:
      ValueError: as `export`; where the run trained the whole model, or PEFT has no such adapter.
    """
    stored = _find(path, step, model_type)
    lora, parts, dtype = stored.run.lora, stored.parts, dtype or "float32"
    if lora.rank is None:
        raise ValueError(f"--workdir={path} trained a whole model; leave --adapter out.")
    arrays = flatten(
        stored_weights.read_updates(stored.directory, stored.step, lora, parts.params, parts.axes)
    )
    updates = {
        target.path: peft.Update(target, *(np.asarray(arrays[each]) for each in target.paths))
        for target in adapters.targets(lora, parts.axes)
    }
    whole = {
        path: np.asarray(leaf) for path, leaf in arrays.items() if path in adapters.TRAINED_WHOLE
    }
    base = stored.metadata["base"]["name"]
    with save.whole_directory(out) as part:
        num_bytes = peft.save_adapter(
            part,
            stored.family,
            stored.config,
            lora,
            updates,
            whole,
            stored.leaves,
            save.DTYPES[dtype],
            base,
        )
    return f"{path} step {stored.step} -> {out}: adapter of {base}, {_size(num_bytes)} in {dtype}"


def _find(path: pathlib.Path, step: int | None, model_type: str | None) -> _Stored:
    directory = path / workdir.CHECKPOINTS
    steps = whole_steps(directory)
    if not steps:
        raise ValueError(f"--workdir={path} has no whole checkpoint; train or import one first.")
    step = steps[-1] if step is None else step
    metadata = read_record(directory, step).metadata
    run = of_any_stage(metadata["config"])
    config = dataclasses.replace(run.model, context_len=run.model.context_len or run.data.seq_len)
    parts = split(jax.eval_shape(config_program.model_maker(run), jax.random.key(0)))
    where = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    params = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), parts.params
    )
    family = _family(path, config, model_type)
    return _Stored(directory, step, metadata, run, config, family, parts._replace(params=params))


def _reader(stored: _Stored, base: str | None) -> save.ReadPart:
    """Reads parts of parameters; all that can be refused is checked."""
    weights = stored_weights.of_checkpoint(stored.directory, stored.step, base)
    read = weights.open(stored.parts.params, stored.parts.axes)
    if isinstance(weights, stored_weights.Merged):
        return stored_weights.parts_of(read)
    if base is not None:
        raise ValueError(f"--base={base}: the run trained a whole model and has none.")
    leaves = read_record(stored.directory, stored.step).leaves
    return functools.partial(_part, stored.directory, stored.step, leaves)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:,.2f} GB"


def _part(
    directory: pathlib.Path,
    step: int,
    leaves: Collection[str],
    path: str,
    where: tuple[slice, ...],
) -> np.ndarray:
    """Part of a parameter of a checkpoint."""
    leaf = stored_weights.leaf_path(leaves, path)
    return open_leaf(directory, step, leaf)[where].read().result()


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
    parser.add_argument(
        "--adapter", action="store_true", help="of a LoRA run: write the updates alone, for PEFT"
    )
    parser.add_argument(
        "--base",
        metavar="WORKDIR@STEP",
        help="of a LoRA run: where its base is now (or a HF_DIR); default: where it was",
    )
    return parser


if __name__ == "__main__":
    launch.run(main)
