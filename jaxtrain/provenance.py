"""Whether a result on disk is what a command would make now: never reused on trust.

Every result records what it was made from: settings and hashes of content, no path and no time. So
it is recognised under another name and in another place, and a change of one byte is noticed.
"""

import os
from collections.abc import Mapping
from typing import Any

from jaxtrain.config import differences


def is_current(
    result: str | os.PathLike[str], made_from: Mapping[str, Any] | None, wanted: Mapping[str, Any]
) -> bool:
    """True where `result` was made from what is wanted; False where there is none yet.

    Args:
      result: its path, for the message.
      made_from: what the result records; None where it does not exist.
      wanted: what it would be made from now.

    Raises:
      ValueError: where it was made from something else, saying what differs.
    """
    if made_from is None:
        return False
    changed = list(differences(made_from, wanted, "made_from"))
    if changed:
        raise ValueError(
            f"{result} exists and was made from something else: {'; '.join(changed)}. "
            "Write to another place, or delete it first"
        )
    return True
