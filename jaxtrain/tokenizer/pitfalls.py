"""Texts that tokenizers are apt to change, and whether one does.

Each has been somebody's silent loss: folded by NFKC, collapsed, read as a special token, or printed
as U+FFFD while a character was still incomplete.
"""

from collections.abc import Mapping
from typing import Any, Final

from jaxtrain.tokenizer.tokenizer import Tokenizer

TEXTS: Final[Mapping[str, str]] = {
    "compatibility characters (NFKC folds them)": "ﬁ … ② ㎏ ™ ½ ㋿",
    "full-width letters, digits, marks": "ＡＢＣ１２３，。！？（）",
    "combining marks, composed and not": "é e\u0301 ก\u0e47 न\u0940 Å Å",
    "variants of Chinese characters": "﨑崎 ⾯面 门門 葛\U000e0100 神神",
    "U+3000, the ideographic space": "\u3000\u3000段落　换行\u3000",
    "emoji with joiners, tones and flags": "👩‍🚀 👨‍👩‍👧 👍🏽 🏳️‍🌈 🇨🇳",
    "spaces, tabs, line breaks": " a  b\n\tc \r\n\n   d ",
    "indentation": "def f(x):\n    if x:\n        return  x\n",
    "controls and invisible characters": "a\u0000b\u0007\u200bc\ufeff\u00ad\u2028d\u0085",
    "marks of tokenizers themselves": "a▁b ##c @@d Ġe ‿f <0x41>",
    "digits": "1234567890 3.14159 2026-11-30",
}


def check_pitfalls(tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    """What was put in, what came back and whether it is kept, for each of TEXTS and two more."""
    checks = {
        name: _check(text, tokenizer.decode(tokenizer.encode(text))) for name, text in TEXTS.items()
    }
    checks["text that looks like special tokens"] = _check_special(tokenizer)
    checks["characters whose bytes arrive one by one"] = _check_stream(tokenizer)
    return checks


def _check(text: str, came_back: str) -> dict[str, Any]:
    return {"text": text, "came_back": came_back, "kept": came_back == text}


def _check_special(tokenizer: Tokenizer) -> dict[str, Any]:
    special = tokenizer.special_token_ids
    text = " ".join(tokenizer.token(each) for each in special[:8])
    ids = tokenizer.encode(text).tolist()
    found = _check(text, tokenizer.decode(ids))
    return found | {"kept": found["kept"] and not set(ids) & set(special)}


def _check_stream(tokenizer: Tokenizer) -> dict[str, Any]:
    """Whether streamed pieces join to the text that all ids give at once, as far as each came."""
    text = "".join(TEXTS.values())
    ids = tokenizer.encode(text).tolist()
    stream = tokenizer.stream()
    pieces = [stream.push(each) for each in ids]
    whole = tokenizer.decode(ids)
    streamed = "".join(pieces) + stream.finish()
    return {"text": whole, "came_back": streamed, "kept": streamed == whole}
