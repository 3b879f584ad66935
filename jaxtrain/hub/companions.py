"""What belongs to a model beside its weights, and where it lies in a workdir.

    tokenizer.json, tokenizer_config.json, chat_template.jinja, …   as in the model's directory
    hub/config.json, hub/generation_config.json                     as they were imported

So that an export can give back what the training does not touch: token ids, how to generate, the
chat template.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from jaxtrain.chat.source import template_source, turn_end_ids
from jaxtrain.files import read_json, write_whole
from jaxtrain.hub.directory import CONFIG
from jaxtrain.hub.save import GENERATION
from jaxtrain.tokenizer.special_tokens import FILES as TOKENIZER_FILES
from jaxtrain.tokenizer.special_tokens import MAP_FILE
from jaxtrain.tokenizer.tokenizer import Tokenizer

HUB = "hub"  # folder in a workdir
#: Files of a tokenizer that are kept as they are; `vocab.json` and the like repeat tokenizer.json.
KEPT = (
    *TOKENIZER_FILES,
    MAP_FILE,
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
#: Fields of config.json that go through from an import to its export.
_CARRIED = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "initializer_range",
    "pretraining_tp",
    "use_cache",
)


def read_tokenizer(directory: pathlib.Path) -> Tokenizer | None:
    """The tokenizer of a directory; None where it has no files of one.

    Raises:
      ValueError: where there are files but no tokenizer can be made of them.
    """
    if not any((directory / name).is_file() for name in TOKENIZER_FILES[:2]):
        return None
    return Tokenizer.load(directory)


def kept_files(directory: pathlib.Path) -> dict[str, bytes]:
    """The files of a tokenizer and chat template that are there."""
    paths = {name: directory / name for name in KEPT}
    return {name: path.read_bytes() for name, path in paths.items() if path.is_file()}


def files_for_export(directory: pathlib.Path) -> dict[str, bytes]:
    """Those of a workdir in the form that `transformers` loads."""
    tokenizer = read_tokenizer(directory)
    made = {} if tokenizer is None else dict(tokenizer.transformers_files)
    return {**made, **kept_files(directory)}


def keep_origin(model: pathlib.Path | None, workdir: pathlib.Path) -> None:
    """Puts an imported model's config and generation config into a workdir; None: it has none."""
    for name in (CONFIG, GENERATION):
        target = workdir / HUB / name
        content = (model / name).read_bytes() if model and (model / name).is_file() else None
        if content is None:
            target.unlink(missing_ok=True)  # of a start that never trained
        else:
            with write_whole(target) as file:
                file.write(content)


def origin(workdir: pathlib.Path, name: str) -> Mapping[str, Any] | None:
    """CONFIG or GENERATION as `keep_origin` put it there; None for a model of our own."""
    path = workdir / HUB / name
    return read_json(path) if path.is_file() else None


def generation_fields(workdir: pathlib.Path, *, is_trained: bool) -> Mapping[str, Any] | None:
    """The content of generation_config.json: as it was imported; None: the token ids alone.

    Of a model that was trained here with a chat template, what ends a turn of it ends an answer.
    """
    found = origin(workdir, GENERATION)
    if not is_trained:
        return found
    source, tokenizer = template_source(workdir), read_tokenizer(workdir)
    if source is None or tokenizer is None:
        return found
    fields = dict(found or {})
    if found is None:
        ids = token_fields(workdir).items()
        fields = {name: value for name, value in ids if name.endswith("_id")}
    declared = fields.get("eos_token_id")
    ends = list(declared) if isinstance(declared, list) else [] if declared is None else [declared]
    ends += [end for end in turn_end_ids(source, tokenizer) if end not in ends]
    return fields | ({"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {})


def token_fields(workdir: pathlib.Path) -> dict[str, Any]:
    """The fields of config.json that are not the model's: as imported, or as the tokenizer says."""
    imported = origin(workdir, CONFIG)
    if imported is not None:
        return {name: imported[name] for name in _CARRIED if name in imported}
    tokenizer = read_tokenizer(workdir)
    ids = {} if tokenizer is None else tokenizer.special_ids
    return {f"{role}_token_id": ids[role] for role in ("bos", "eos", "pad") if role in ids}
