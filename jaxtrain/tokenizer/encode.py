"""Documents' texts to token ids, in order and on all cores.

Each document's ids begin with BOS and end with EOS, which are added here and nowhere else: from
BOS the first token of the text is predicted, so that a loss covers every byte. They go to the token
store, which keeps documents apart; what a row of a batch looks like is decided in `data/`.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from jaxtrain.tokenizer.bpe import BOS, EOS, Tokenizer

#: What a document becomes; part of what decides the ids of a store.
DOCUMENT_FORM = (BOS, "text", EOS)

_BATCH_CHARS = 4_000_000  # enough work for all cores at once, little enough to bound memory


def encode_texts(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """Yields BOS, a text's ids and EOS (uint32) for each text. Memory: a few MB of text."""
    bos, eos = (np.array([tokenizer.control_id(name)], np.uint32) for name in (BOS, EOS))
    for batch in _batches(texts):
        for ids in tokenizer.encode_batch(batch):
            yield np.concatenate([bos, ids, eos])


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
