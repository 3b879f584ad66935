"""Keys that open something: API keys, access tokens, private keys."""

import collections
import functools
import math
import re
from collections.abc import Iterator

_PRIVATE_KEY_MARK = "PRIVATE KEY"
# PEM (RFC 7468) and OpenPGP (RFC 9580) armour. A block whose end is cut off ends with its last
# line of Base64 or header.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:(?!-----BEGIN)[^\x00]){0,20000}?-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
    r"|(?:(?:\r?\n|\\n)(?:[A-Za-z0-9+/=]{16,80}(?=\r?\n|\\n|\Z)"
    r"|[A-Za-z-]{3,20}: [^\n]{0,80}|(?=\r?\n)))*)"
)

# Forms that the issuers publish so that leaked ones can be found. Each is looked for only where its
# literal part is: a plain search is many times as fast as a pattern's, one for `_` faster still.
_WITH_UNDERSCORE = {
    "gh": r"gh[opsu]_[A-Za-z0-9]{36,251}",  # GitHub personal, OAuth, app and user tokens
    "github_pat_": r"github_pat_[A-Za-z0-9_]{60,251}",  # GitHub fine-grained token
    "k_live_": r"[rs]k_live_[A-Za-z0-9]{20,250}",  # Stripe
    "hf_": r"hf_[A-Za-z0-9]{34,40}",  # Hugging Face
    "npm_": r"npm_[A-Za-z0-9]{36}",  # npm
}
_OTHERS = {
    "AKIA": r"AKIA[A-Z2-7]{16}",  # AWS access key id
    "ASIA": r"ASIA[A-Z2-7]{16}",  # AWS temporary access key id
    "AIza": r"AIza[A-Za-z0-9_-]{35}",  # Google API key
    "GOCSPX-": r"GOCSPX-[A-Za-z0-9_-]{28}",  # Google OAuth client secret
    "ya29.": r"ya29\.[A-Za-z0-9_-]{30,500}",  # Google OAuth access token
    "glpat-": r"glpat-[A-Za-z0-9_-]{20,60}",  # GitLab personal access token
    "xox": r"xox[abeoprs]-[A-Za-z0-9-]{20,250}",  # Slack token
    "sk-": r"sk-(?:[A-Za-z0-9]+-){0,2}[A-Za-z0-9_]{20}[A-Za-z0-9_-]{12,180}",  # OpenAI, Anthropic
    "SG.": r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",  # SendGrid
    "pypi-": r"pypi-[A-Za-z0-9_-]{80,250}",  # PyPI
    "LTAI": r"LTAI[A-Za-z0-9]{12,24}",  # Alibaba Cloud access key id
    "AKID": r"AKID[A-Za-z0-9]{32}",  # Tencent Cloud secret id
    "eyJ": r"eyJ[A-Za-z0-9_-]{10,1000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{20,1000}",  # JWT
}

# name = value, where the name says that the value is secret and the value looks drawn at random.
_ASSIGNED = re.compile(r"[:=][ \t]{0,2}[\"']?([A-Za-z0-9+/_-]{20,200}={0,2})(?![A-Za-z0-9+/_=.-])")
_SECRET_NAME = re.compile(
    r"(?:api|access|auth|secret|private|client|account|bearer|encryption)[_ -]?"
    r"(?:key|token|secret)(?:[_ -]?(?:id|key))?[\"']?[ \t]{0,2}\Z|"
    r"(?:password|passwd|credential)s?[\"']?[ \t]{0,2}\Z",
    re.IGNORECASE,
)
_NAME_SPAN = 40  # characters before the value
_MIN_ENTROPY = 3.5  # bits a character; a random hex string of 32 has 3.6 on average, words have 3.2


def private_keys(text: str) -> Iterator[tuple[int, int]]:
    """Whole blocks of private keys, their armour lines included."""
    if _PRIVATE_KEY_MARK in text:
        yield from (match.span() for match in _PRIVATE_KEY.finditer(text))


def api_keys(text: str) -> Iterator[tuple[int, int]]:
    """Keys of a form that their issuer publishes, and random values given to a secret name."""
    for literal, pattern in (*_OTHERS.items(), *(_WITH_UNDERSCORE.items() if "_" in text else ())):
        if literal in text:
            yield from (match.span() for match in _whole_word(pattern).finditer(text))
    for match in _ASSIGNED.finditer(text):
        before = text[max(0, match.start() - _NAME_SPAN) : match.start()]
        if _SECRET_NAME.search(before) and _looks_random(match[1]):
            yield match.span(1)


@functools.cache
def _whole_word(pattern: str) -> re.Pattern[str]:
    return re.compile(r"(?<![A-Za-z0-9_])" + pattern + r"(?![A-Za-z0-9_])")


def _looks_random(value: str) -> bool:
    has_digit = any(c.isdigit() for c in value)
    has_letter = any(c.isalpha() for c in value)
    return has_digit and has_letter and _entropy(value) >= _MIN_ENTROPY


def _entropy(value: str) -> float:
    """Bits a character, of the characters' frequencies in `value`."""
    counts = collections.Counter(value).values()
    return math.log2(len(value)) - sum(n * math.log2(n) for n in counts) / len(value)
