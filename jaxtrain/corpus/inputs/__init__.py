"""Where documents are read from: files of many formats, here or in object storage.

    [name=]glob or URL ─ plan ─▶ units of work ─ read ─▶ Document | Malformed | Skipped

`reading.py` says what can be configured and what comes out, `planning.py` finds the files and cuts
them into units, `storage.py` opens them. Each other module reads one format.
"""

from jaxtrain.corpus.inputs.planning import check, plan
from jaxtrain.corpus.inputs.read import read, read_documents
from jaxtrain.corpus.inputs.reading import Malformed, Part, ReadingConfig, Skipped, Unit

__all__ = [
    "Malformed",
    "Part",
    "ReadingConfig",
    "Skipped",
    "Unit",
    "check",
    "plan",
    "read",
    "read_documents",
]
