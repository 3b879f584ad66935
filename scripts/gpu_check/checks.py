"""What was looked at and how it came out: passed, failed, or not checked and why."""

from typing import Any

PASSED, FAILED, NOT_CHECKED = "passed", "failed", "not checked"
NO_GPU = "no GPU"


class Checks:
    """The checks of one part, in order."""

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []

    def expect(self, what: str, holds: bool, found: str) -> None:
        """Notes whether `what` holds, and what was found."""
        self._note(what, PASSED if bool(holds) else FAILED, found)

    def leave_out(self, what: str, why: str = NO_GPU) -> None:
        """Notes that `what` cannot be looked at here."""
        self._note(what, NOT_CHECKED, why)

    def _note(self, what: str, result: str, found: str) -> None:
        self.rows.append({"what": what, "result": result, "found": found})
        print(f"  {result}: {what}: {found}", flush=True)


def lines(parts: dict[str, Any], result: str) -> list[str]:
    """One line for each check of all parts that came out so; errors of parts are failures."""
    found = []
    for name, part in parts.items():
        if result == FAILED and part.get("error"):
            found.append(f"{name}: {part['error']}")
        for row in part.get("checks", ()):
            if row["result"] == result:
                found.append(f"{name}: {row['what']}: {row['found']}")
    return found
