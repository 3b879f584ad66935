"""Whether the documents of a run's stores can be served as its config says, together.

A document of plain text may be cut and joined. A conversation must be seen whole and alone; answers
that are judged together must also stand in one row.
"""

import numpy as np

from jaxtrain.data import groups
from jaxtrain.data.config import DataConfig
from jaxtrain.data.sources import Source, mask_id


def check_source(source: Source, config: DataConfig) -> None:
    """Checks a source to train on.

    Raises:
      ValueError: names it and what to set.
    """
    path = f"config.data.sources.{source.name}"
    if config.objective == "masked_lm":
        mask_id(source.store, f"{path}.path")
    if not source.num_rows:  # an empty store: warned of, and never drawn
        return
    check_documents(source, config, f"{path}.path")
    if source.store.has_mask or source.store.answers:  # a few short ones are filled up with filler
        return
    if source.store.num_tokens < config.seq_len:
        raise ValueError(
            f"config.data.seq_len={config.seq_len} must be at most {source.store.num_tokens}, all "
            f"tokens of {path}; lower it or add text."
        )
    if config.objective == "next_token" and not source.ledger.num_targets:
        raise ValueError(
            f"{path} has no token to predict: with config.data.packing={config.packing!r} no token "
            "follows another in its documents; use packing='concat' or other data."
        )


def check_documents(source: Source, config: DataConfig, path: str) -> None:
    """Checks that answers or conversations, which say themselves what is trained, can be served.

    Raises:
      ValueError: names the source and what to set.
    """
    if not source.num_rows:
        return
    if source.store.answers is not None:
        _check_answers(source, config, f"{path}={source.store.path!r}")
    elif source.store.has_mask:
        _check_conversations(source, config, f"{path}={source.store.path!r} holds conversations")


def _check_objective(config: DataConfig, where: str) -> None:
    if config.objective != "next_token":
        raise ValueError(
            f"{where}, which say themselves what is trained; "
            f"config.data.objective={config.objective!r} would not heed it: set next_token."
        )


def _check_answers(source: Source, config: DataConfig, where: str) -> None:
    where = f"{where} holds answers of kind {source.store.answers!r}"
    _check_objective(config, where)
    if config.packing != groups.PACKING:
        raise ValueError(
            f"{where}, and with config.data.packing={config.packing!r} those that belong together "
            f"would be cut apart; set {groups.PACKING}."
        )
    if config.weighting != "token":
        raise ValueError(
            f"{where}, which count by the loss and not by their tokens; "
            f"config.data.weighting={config.weighting!r} means nothing here: set token."
        )
    if source.ledger.num_cut_documents:
        ends = source.store.document_ends[source.store.group_ends - 1]
        lengths = np.diff(ends, prepend=0)
        longest = int(lengths.argmax())
        first = int(source.store.group_ends[longest - 1]) if longest else 0
        name, place = source.store.document_name(first)
        raise ValueError(
            f"{where}, and {int((lengths > config.seq_len).sum()):,} of {len(ends):,} groups are "
            f"longer than a row of config.data.seq_len={config.seq_len} (the longest has "
            f"{int(lengths.max()):,} tokens, from {name!r} at {place!r}); raise it, or make the "
            "store with --max_len."
        )


def _check_conversations(source: Source, config: DataConfig, where: str) -> None:
    _check_objective(config, where)
    if config.packing == "concat":
        raise ValueError(
            f"{where}, and with config.data.packing='concat' they would see each other; set "
            "best_fit."
        )
    ledger = source.ledger
    if ledger.num_cut_documents:
        longest = int(np.diff(source.store.document_ends, prepend=0).max())
        raise ValueError(
            f"{where}, and rows of config.data.seq_len={config.seq_len} would cut "
            f"{ledger.num_cut_documents:,} of {ledger.num_documents:,} (the longest has "
            f"{longest:,} tokens), so that answers lose their prompts; raise it (and set "
            "config.data.packing=best_fit), or make the store with --max_len."
        )
    if not ledger.num_targets:
        raise ValueError(
            f"{where}, but 0 of {ledger.tokens_in:,} tokens trained; make the store anew and look "
            "at it with --show."
        )
