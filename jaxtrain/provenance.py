"""Whether a result on disk is what a command would make now: never reused on trust.

Every result records what it was made from: settings and hashes of content, no path and no time. So
it is recognised under another name and in another place, and a change of one byte is noticed.
"""

import os
from collections.abc import Mapping
from typing import Any

from jaxtrain.config import differences

_MOST_SHOWN = 8


def check_same(
    result: str | os.PathLike[str], made_from: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
    """Compares what `result` records to be made from with what it would be made from now.

    Raises:
      ValueError: where they are not the same, saying what differs.
    """
    changed = list(differences(made_from, wanted, "made_from"))
    if changed:
        shown = changed[:_MOST_SHOWN]
        if len(changed) > len(shown):
            shown.append(f"and {len(changed) - len(shown)} more")
        raise ValueError(
            f"{result} exists and was made from something else: {'; '.join(shown)}. "
            "Write to another place, or delete it first"
        )
