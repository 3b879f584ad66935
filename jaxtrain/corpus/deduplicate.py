"""Removal of documents whose text already occurred, by content hash."""

import hashlib
from collections.abc import Iterable, Iterator

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.ledger import Ledger


def drop_exact_duplicates(documents: Iterable[Document], ledger: Ledger) -> Iterator[Document]:
    """Yields the first document of each text, the same one always if the source keeps its order."""
    seen: set[bytes] = set()
    for document in documents:
        text = document.text.encode()
        digest = hashlib.sha256(text).digest()
        if digest in seen:
            ledger.drop("exact duplicate", len(text))
        else:
            seen.add(digest)
            yield document
