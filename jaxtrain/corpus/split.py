"""Which documents are held out: decided by a hash of the id alone.

So the decision is the same in every process, order and version, and a document added later moves no
other. Parts of a document go where the whole goes; held out are wholes only, since a part says
nothing that the whole does not, and would count twice.
"""

import hashlib
from collections.abc import Iterable, Iterator

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.ledger import Ledger

TRAIN = "train"
HELDOUT = "heldout"


def split(
    documents: Iterable[Document], heldout_frac: float, ledger: Ledger
) -> Iterator[tuple[str, Document]]:
    """Yields (TRAIN or HELDOUT, document)."""
    for document in documents:
        if not is_held_out(document, heldout_frac):
            yield TRAIN, document
        elif document.id == document.whole_id:
            yield HELDOUT, document
        else:
            ledger.drop("part of a held-out document", document.num_bytes)


def is_held_out(document: Document, heldout_frac: float) -> bool:
    """True for about `heldout_frac` of all whole ids."""
    digest = hashlib.sha256(document.whole_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") < heldout_frac * 2**64
