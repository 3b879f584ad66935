r"""Brings texts to one form of Unicode and of line breaks; drops those without a visible character.

By default a text changes in these ways and in no other:

    line breaks          \r\n and \r become \n, and so do \v and \f
    control characters   the other controls U+0000-U+001F (not \t, not \n) and U+007F-U+009F
                         (not U+0085, next line) go
    byte order mark      U+FEFF goes at the beginning of the text; elsewhere it stays
    unicode form         NFC: canonically equivalent, composed where a composed character exists

Everything else stays as it is: white space of every kind (U+3000, U+00A0, U+2028), joiners and
variation selectors in emoji and Indic scripts, marks for text direction, full-width and private
characters, U+FFFD. With `form="NFKC"` look-alikes are folded as well (full-width Ａ to A, ² to 2,
… to three full stops, U+3000 to a space): a loss, so only when asked for. With `repair_mojibake`,
UTF-8 that was once read in a wrong encoding (schÃ¶n) is put right by ftfy, line by line.

Edits are counted in characters (line breaks, control characters, byte order marks) or in lines that
changed (unicode form, mojibake). A second run changes nothing.
"""

import dataclasses
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Outcome, Workspace
from jaxtrain.options import option

_LINE_BREAK = re.compile(r"\r\n?|[\v\f]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
_TO_MEND = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f]")  # what either of them finds
_BYTE_ORDER_MARK = "\ufeff"
# Mending a line can bring out another fault in it; each round undoes one wrong decoding.
_MAX_ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class Config:
    """What `normalize` changes."""

    form: str = option(
        "NFC", "Unicode normal form; NFKC folds look-alikes and loses them", choices=("NFC", "NFKC")
    )
    repair_mojibake: bool = option(
        False, "mend text once read in a wrong encoding, by the package ftfy"
    )

    def __post_init__(self):
        if self.form not in ("NFC", "NFKC"):
            raise ValueError(f"form={self.form!r} must be NFC or NFKC")


def make(config: Config, workspace: Workspace) -> "Normalize":
    """The step.

    Raises:
      ValueError: mojibake is to be repaired and ftfy is not installed.
    """
    return Normalize(config)


class Normalize:
    """Changes texts, and drops those with nothing left to see."""

    needs = ()
    writes: Mapping[str, type] = {}
    rules = (
        "mojibake",
        "byte order mark",
        "line breaks",
        "control characters",
        "unicode form",
        "empty",
    )

    def __init__(self, config: Config):
        self._form: Literal["NFC", "NFKC"] = "NFC" if config.form == "NFC" else "NFKC"
        self._fix_encoding = _load_ftfy() if config.repair_mojibake else None

    def __call__(self, batch: Sequence[Document]) -> list[Outcome]:
        """Edits count by rule as the module says."""
        return [self._clean(document) for document in batch]

    def _clean(self, document: Document) -> Outcome:
        edits: Counter[str] = Counter()
        text = self._normalized(document.text, edits)
        if not text or text.isspace():
            found = "white space" if text else "nothing"
            return Outcome(document, "empty", f"{found} left of {len(document.text)} characters")
        return Outcome(document._replace(text=text) if edits else document, edits=dict(edits))

    def _normalized(self, text: str, edits: Counter[str]) -> str:
        text = self._one_round(text, edits)
        if self._fix_encoding is None:
            return text
        for _ in range(_MAX_ROUNDS):
            before = text
            text = self._one_round(text, edits)
            if text == before:
                break
        return text

    def _one_round(self, text: str, edits: Counter[str]) -> str:
        if self._fix_encoding is not None and not text.isascii():
            lines = text.split("\n")
            mended = [line if line.isascii() else self._fix_encoding(line) for line in lines]
            _count(edits, "mojibake", sum(a != b for a, b in zip(lines, mended, strict=True)))
            text = "\n".join(mended)
        if _TO_MEND.search(text):
            text, breaks = _LINE_BREAK.subn("\n", text)
            _count(edits, "line breaks", breaks)
            text, controls = _CONTROL.subn("", text)
            _count(edits, "control characters", controls)
        if text.startswith(_BYTE_ORDER_MARK):
            stripped = text.lstrip(_BYTE_ORDER_MARK)
            _count(edits, "byte order mark", len(text) - len(stripped))
            text = stripped
        if not unicodedata.is_normalized(self._form, text):
            # A newline neither joins with its neighbours nor changes: lines are done alone.
            lines = text.split("\n")
            formed = [unicodedata.normalize(self._form, line) for line in lines]
            _count(edits, "unicode form", sum(a != b for a, b in zip(lines, formed, strict=True)))
            text = "\n".join(formed)
        return text


def _count(edits: Counter[str], rule: str, number: int) -> None:
    if number:
        edits[rule] += number


def _load_ftfy():
    try:
        import ftfy  # an extra: imported where it is asked for
    except ImportError as error:
        raise ValueError(
            "repair_mojibake=True needs the package ftfy, which is not installed; "
            "install jaxtrain[web], or set repair_mojibake=False"
        ) from error
    return ftfy.fix_encoding
