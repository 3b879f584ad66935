"""Which documents are held out: decided by a hash of the id alone.

So the decision is the same in every process, order and version, and a document added later moves no
other. Parts of a document go where the whole goes; held out are wholes only, since a part says
nothing that the whole does not, and would count twice.
"""

import hashlib
from collections.abc import Iterable

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Outcome

TRAIN = "train"
HELDOUT = "heldout"
_PART = "part of a held-out document"
SPLIT_RULES = (_PART,)


def split(documents: Iterable[Document], heldout_frac: float) -> tuple[list[Outcome], list[str]]:
    """The outcome of each document, and the output (TRAIN or HELDOUT) of each that is kept."""
    outcomes, outputs = [], []
    for document in documents:
        held_out = is_held_out(document, heldout_frac)
        if held_out and document.id != document.whole_id:
            outcomes.append(Outcome(document, _PART, f"part of {document.whole_id}"))
        else:
            outcomes.append(Outcome(document))
            outputs.append(HELDOUT if held_out else TRAIN)
    return outcomes, outputs


def is_held_out(document: Document, heldout_frac: float) -> bool:
    """True for about `heldout_frac` of all whole ids."""
    digest = hashlib.sha256(document.whole_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") < heldout_frac * 2**64
