"""From documents to a corpus on disk: train.jsonl, heldout.jsonl and card.json.

    documents ─ drop_exact_duplicates ─ split ─▶ train.jsonl, heldout.jsonl ─▶ card.json

The card is written last: a directory with a card holds a whole corpus. It says what the corpus was
made from and what became of it, carries no path and no time, and is the same for the same input.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from jaxtrain import files
from jaxtrain.corpus.baselines import compressor_bits_per_byte
from jaxtrain.corpus.deduplicate import drop_exact_duplicates
from jaxtrain.corpus.documents import Document, fingerprint, write_documents
from jaxtrain.corpus.ledger import Ledger
from jaxtrain.corpus.split import HELDOUT, TRAIN, split
from jaxtrain.corpus.stdlib import StdlibConfig
from jaxtrain.options import option

CARD = "card.json"
_FORMAT = 1  # raised when the same input and config would give another corpus


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
    """How raw text becomes a corpus."""

    stdlib: StdlibConfig
    heldout_frac: float = option(0.05, "share of documents held out, by a hash of their ids")

    def __post_init__(self) -> None:
        if not 0 < self.heldout_frac < 1:
            raise ValueError(
                f"heldout_frac={self.heldout_frac} must lie between 0 and 1; 0.05 is usual"
            )


def recipe(documents: Sequence[Document], config: CorpusConfig) -> dict[str, Any]:
    """All that decides what the corpus holds, as JSON values: settings and the content put in."""
    return {
        "format": _FORMAT,
        "config": json.loads(json.dumps(dataclasses.asdict(config))),  # tuples to lists
        "input_sha256": fingerprint(documents),
    }


def read_card(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The card of the corpus in `directory`, None where there is no whole one.

    Raises:
      ValueError: where a file of the corpus is no longer the one that the card describes.
    """
    path = pathlib.Path(directory, CARD)
    if not path.exists():
        return None
    card = files.read_json(path)
    for name, written in card["outputs"].items():
        output = _output_file(directory, name)
        if not output.exists() or files.sha256(output) != written["sha256"]:
            raise ValueError(
                f"{output} is not the file that {path} describes; restore it, or delete {path} "
                "to write the corpus anew"
            )
    return card


def build(
    documents: Sequence[Document],
    ledger: Ledger,
    config: CorpusConfig,
    directory: str | os.PathLike[str],
) -> dict[str, Any]:
    """Writes the corpus into `directory` and returns its card.

    Args:
      ledger: the one that the source counted `documents` in.
    """
    outputs: dict[str, list[Document]] = {TRAIN: [], HELDOUT: []}
    for name, document in split(
        drop_exact_duplicates(documents, ledger), config.heldout_frac, ledger
    ):
        outputs[name].append(document)
        ledger.keep(name, document.num_bytes)
    ledger.check()
    if not outputs[TRAIN]:
        raise ValueError("no document is left to train on; lower corpus.heldout_frac or add input")
    baselines = compressor_bits_per_byte(outputs[HELDOUT])
    card = {
        "made_from": recipe(documents, config),
        "ledger": ledger.to_plain(),
        "outputs": {
            name: write_documents(_output_file(directory, name), kept)._asdict()
            for name, kept in outputs.items()
        },
        "heldout_bits_per_byte": baselines,
    }
    files.write_json(pathlib.Path(directory, CARD), card)
    return card


def _output_file(directory: str | os.PathLike[str], name: str) -> pathlib.Path:
    return pathlib.Path(directory, f"{name}.jsonl")
