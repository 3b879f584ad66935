"""Special tokens: their roles, their names, and the small file beside a tokenizer that says so.

A special token is put in by id where the form of a document or a chat is decided. It is never read
from a text: in a document, `<|eos|>` is seven characters.

Which token has which role ("bos", "eos", "pad", …) stands in `tokenizer_config.json` and, for older
models, in `special_tokens_map.json` beside the tokenizer, as `transformers` writes and reads them.
A file without either has the roles that its own tokens are named for (`<|bos|>` …).
"""

import json
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

BOS: Final = "<|bos|>"
EOS: Final = "<|eos|>"
PAD: Final = "<|pad|>"
MASK: Final = "<|mask|>"

#: What a tokenizer that is trained here has after its learned ids.
CONTROL_TOKENS: Final = (BOS, EOS, PAD, MASK)

ROLES: Final = ("bos", "eos", "pad", "mask", "unk", "cls", "sep")
JSON_FILE: Final = "tokenizer.json"
MODEL_FILE: Final = "tokenizer.model"
CONFIG_FILE: Final = "tokenizer_config.json"
#: What belongs to a tokenizer, wherever it travels; it has one of the first two.
FILES: Final = (JSON_FILE, MODEL_FILE, CONFIG_FILE)
MAP_FILE: Final = "special_tokens_map.json"

_RESERVED: Final = "<|reserved_{}|>"


def reserved_names(count: int, first: int = 0) -> list[str]:
    """Names of ids that no text has: room for later markers, or for a vocabulary's shards."""
    return [_RESERVED.format(number) for number in range(first, first + count)]


def is_reserved(name: str) -> bool:
    """Whether a token is one of `reserved_names`, still without a meaning."""
    before, after = _RESERVED.split("{}")
    return name.startswith(before) and name.endswith(after)


def roles_by_name(find: Callable[[str], int | None]) -> dict[str, str]:
    """Role → token, for tokens named `<|role|>`."""
    return {role: f"<|{role}|>" for role in ROLES if find(f"<|{role}|>") is not None}


def read_roles(directory: pathlib.Path) -> dict[str, str] | None:
    """Role → token, as the files of `directory` say; None where it has none.

    Raises:
      ValueError: names the file and what cannot be understood in it.
    """
    roles: dict[str, str] | None = None
    for name in (MAP_FILE, CONFIG_FILE):  # the second goes before the first
        path = directory / name
        if path.is_file():
            roles = (roles or {}) | _roles_in(path)
    return roles


def _roles_in(path: pathlib.Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); restore it or delete it") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, but must hold an object")
    roles = {}
    for role in ROLES:
        token = content.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if token is None:
            continue
        if not isinstance(token, str):
            raise ValueError(f"{path}: {role}_token is {token!r}, but must be a token's text")
        roles[role] = token
    return roles


def described(roles: Mapping[str, str], others: Iterable[str]) -> bytes:
    """The content of CONFIG_FILE for a tokenizer with these roles and other special tokens."""
    content: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,  # by default it takes spaces away in decoding
    }
    content |= {f"{role}_token": roles[role] for role in ROLES if role in roles}
    named = set(roles.values())
    extra = [each for each in others if each not in named and not is_reserved(each)]
    if extra:
        content["additional_special_tokens"] = extra
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"
