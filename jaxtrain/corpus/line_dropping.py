"""Drops lines of a text by rules, and counts them by rule."""

from collections import Counter
from collections.abc import Callable


def drop_lines(text: str, rule_of: Callable[[str], str | None]) -> tuple[str, Counter[str]]:
    """The text without the lines that a rule removes, and how many lines each rule removed.

    Blank lines are no one's to judge: they stay, but where the removal of what stood between them
    would leave two of them together, or one at either end of the text.

    Args:
      text: lines end at newlines and nowhere else.
      rule_of: the rule that removes a line (given without the white space around it), or None.
    """
    kept: list[str] = []
    dropped: Counter[str] = Counter()
    at_gap = False  # lines were removed since the last kept one
    for line in text.split("\n"):
        stripped = line.strip()
        if not stripped:
            if at_gap and not (kept and kept[-1].strip()):
                continue
            kept.append(line)
            continue
        rule = rule_of(stripped)
        if rule is None:
            kept.append(line)
        else:
            dropped[rule] += 1
        at_gap = rule is not None
    if not dropped:
        return text, dropped
    while at_gap and kept and not kept[-1].strip():
        kept.pop()
    return "\n".join(kept), dropped
