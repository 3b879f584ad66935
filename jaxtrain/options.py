"""`option`: how a component declares a configurable field beside its own code.

The tree of all options and the parsing of files and flags is in `config.py`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any


def option(
    default: Any = dataclasses.MISSING,
    doc: str = "",
    *,
    choices: Sequence[str] = (),
    resumable: bool = False,
) -> Any:
    """A dataclass field with its one-line documentation.

    Args:
      default: the value when no file or flag sets it; left out for fields that a file must set.
      doc: one line with the unit; printed by `python -m jaxtrain.config`.
      choices: the allowed values of a string field.
      resumable: True where a run may be continued with another value (how often to log, the
        mesh). False where another value makes it another run (the model, the data).
    """
    metadata = {"doc": doc, "choices": tuple(choices), "resumable": resumable}
    if isinstance(default, (dict, list)) or dataclasses.is_dataclass(default):
        value = default
        return dataclasses.field(default_factory=lambda: value, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)
