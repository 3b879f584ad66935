"""A token store with its plan of rows, and the checks that a run's stores fit its config."""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping

import numpy as np

from jaxtrain.data.config import DataConfig
from jaxtrain.data.groups import GroupPlan
from jaxtrain.data.metadata import StoreError
from jaxtrain.data.packing import Ledger, Pieces, Plan, make_plan
from jaxtrain.data.permutation import hash_indexes, make_key, permute
from jaxtrain.data.store import Store

logger = logging.getLogger(__name__)


class Source:
    """The rows of one store, in the order of its plan or shuffled anew in each epoch."""

    def __init__(self, name: str, store: Store, config: DataConfig, seed: int):
        self.name = name
        self.store = store
        self.config = config
        self.plan = _plan(store, config)
        self._key = make_key("rows", seed, name)

    @property
    def num_rows(self) -> int:
        return self.plan.num_rows

    @functools.cached_property
    def ledger(self) -> Ledger:
        """What one epoch does with the tokens of the store."""
        ledger = self.plan.ledger()
        assert ledger.tokens_dropped == 0, f"{self.name}: packing lost or repeated tokens: {ledger}"
        if self.store.has_mask or self.store.answers:  # the plan knows lengths only
            ledger = dataclasses.replace(ledger, num_targets=self.store.num_targets)
        return ledger

    def documents(self, pieces: Pieces) -> np.ndarray:
        """The document that each piece begins in."""
        return np.searchsorted(self.store.document_ends, pieces.starts, side="right")

    def shuffled(self, draws: np.ndarray) -> np.ndarray:
        """The rows of the plan that these draws take; draw k is in epoch k // num_rows."""
        epochs, places = np.divmod(draws, self.num_rows)
        return permute(places, self.num_rows, hash_indexes(self._key, epochs))


def _plan(store: Store, config: DataConfig) -> Plan:
    if store.answers is not None:
        return GroupPlan(store.document_ends, store.group_ends, config.seq_len)
    return make_plan(config.packing, store.document_ends, config.seq_len)


def open_stores(config: DataConfig) -> dict[str, Store]:
    """Opens the stores to train on, by name; warns of empty ones.

    Raises:
      ValueError: names the source and its file.
    """
    if not config.sources:
        raise ValueError("config.data.sources is empty; name at least one token store.")
    # By name, so that the order of a config's keys decides nothing.
    stores = {
        name: _open(f"sources.{name}", config.sources[name].path) for name in sorted(config.sources)
    }
    for name, store in stores.items():
        if not store.num_tokens:
            logger.warning(
                "config.data.sources.%s has no tokens (%s): it is left out", name, store.path
            )
    return stores


def open_eval_stores(config: DataConfig) -> dict[str, Store]:
    """Opens the stores to measure the held-out loss on, by name; an empty one is an error."""
    stores = {}
    for name in sorted(config.eval_sources):
        stores[name] = _open(f"eval_sources.{name}", config.eval_sources[name].path)
        if not stores[name].num_tokens:
            raise ValueError(
                f"config.data.eval_sources.{name}.path={stores[name].path!r} holds no tokens; "
                "there is nothing to measure: leave it out."
            )
    return stores


def check(config: DataConfig, vocab_size: int, *, may_be_padded: bool = False) -> None:
    """Opens every store and checks that it fits the model and the other stores.

    Plans nothing: the check to run before anything is compiled.

    Args:
      may_be_padded: the model's vocabulary may be larger than the stores', as that of many imported
        models is.

    Raises:
      ValueError: names the source and what does not fit.
    """
    expected = None
    stores = dict(_all_stores(config))
    check_alike(stores)
    for path, store in stores.items():
        found = store.tokenization
        is_padded = may_be_padded and found.vocab_size < vocab_size
        if found.vocab_size != vocab_size and not is_padded:
            raise ValueError(
                f"{path}={store.path!r} has a vocabulary of {found.vocab_size}, but "
                f"config.model.vocab_size={vocab_size}; set it to the store's."
            )
        expected = expected or found.tokenizer_sha256
        if found.tokenizer_sha256 != expected:
            raise ValueError(
                f"{path}={store.path!r} was made with another tokenizer "
                f"({found.tokenizer_sha256[:12]}, not {expected[:12]}); tokenize its text again."
            )
        if config.objective == "masked_lm":
            mask_id(store, path)


def check_alike(stores: Mapping[str, Store]) -> None:
    """Checks that the stores of a run, by their place in the config, hold documents of one kind.

    Raises:
      ValueError: where answers of two kinds, or answers and text, stand side by side.
    """
    kinds = {path: store.answers for path, store in stores.items() if store.num_tokens}
    if len(set(kinds.values())) > 1:
        found = ", ".join(f"{path} holds {kind or 'no answers'}" for path, kind in kinds.items())
        raise ValueError(
            f"{found}; a run takes answers of one kind, or text: leave the others out."
        )


def mask_id(store: Store, path: str) -> int:
    """The id of the store's mask token, which masked-LM needs."""
    try:
        return store.tokenization.special_ids["mask"]
    except KeyError:
        raise ValueError(
            f"{path}={store.path!r} has no mask token, which config.data.objective='masked_lm' "
            "needs; use a tokenizer with one, or objective='next_token'."
        ) from None


def _all_stores(config: DataConfig) -> Iterator[tuple[str, Store]]:
    for name, store in open_stores(config).items():
        yield f"config.data.sources.{name}.path", store
    for name, store in open_eval_stores(config).items():
        yield f"config.data.eval_sources.{name}.path", store


def _open(key: str, path: str) -> Store:
    if not path:
        raise ValueError(f"config.data.{key}.path is empty; name the directory of a token store.")
    try:
        return Store(path)
    except StoreError as error:
        raise ValueError(f"config.data.{key}.path={path!r}: {error}") from None
