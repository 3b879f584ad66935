"""Tokenizers of the `tokenizers` library: any `tokenizer.json`, whatever its model.

Byte-level BPE runs through `tiktoken` where that is known to give the same ids; `tokenizers` is
then the reference that samples are compared with.
"""

import concurrent.futures
import functools
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers

from jaxtrain.tokenizer import byte_level, fast_bpe, special_tokens

_PORTION_CHARS = 50_000
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class TokenizerJson:
    """The engine of a `tokenizer.json`."""

    file_name = special_tokens.JSON_FILE

    def __init__(self, content: bytes) -> None:
        """Args: content: of the file.

        Raises:
          ValueError: where it is no tokenizer.
        """
        self.content = content
        try:
            self._json: dict[str, Any] = json.loads(content)
            self._engine = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises bare `Exception` for a malformed file
            raise ValueError(f"not a tokenizer.json of this version: {error}") from error
        # Not kept in the file. By the library's default a text that looks like a special token
        # becomes one.
        self._engine.encode_special_tokens = True
        self._engine.no_truncation()  # some files cut every text at some length
        self._engine.no_padding()
        ids = self._engine.get_vocab(with_added_tokens=True).values()
        self.num_ids = max(ids, default=-1) + 1
        self.special_names = {
            token["content"]: token["id"]
            for token in self._json.get("added_tokens", ())
            if token["special"]
        }
        self._fast, self._why_not = self._build_fast()

    def _build_fast(self) -> tuple[fast_bpe.FastBPE | None, str]:
        try:
            return fast_bpe.build(self._json, self._engine), ""
        except fast_bpe.Unsuitable as error:
            return None, str(error)

    @property
    def kind(self) -> str:
        """In words, for people."""
        model = self._json["model"]["type"]
        return f"byte-level {model}" if self._is_byte_level() else model

    @property
    def engine(self) -> str:
        """Which library makes the ids, and where it is not the fast one, why."""
        return "tiktoken" if self._fast else f"tokenizers, as {self._why_not}"

    @property
    def normalization(self) -> str:
        """What is done to a text before it is cut, in the library's words."""
        normalizer = self._json.get("normalizer")
        return "identity" if normalizer is None else json.dumps(normalizer, sort_keys=True)

    def token(self, token_id: int) -> str | None:
        return self._engine.id_to_token(token_id)

    def find(self, token: str) -> int | None:
        return self._engine.token_to_id(token)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self._fast is None:
            return self.encode_by_reference(texts)
        portions = list(_portions(texts))
        if len(portions) == 1:
            return self._encode_fast(portions[0])
        return [ids for each in _threads().map(self._encode_fast, portions) for ids in each]

    def _encode_fast(self, texts: Sequence[str]) -> list[np.ndarray]:
        assert self._fast is not None
        encoded = []
        for text in texts:
            try:
                encoded.append(self._fast.encode(text))
            except ValueError:  # its regular expressions have a limit that the reference has not
                encoded += self.encode_by_reference([text])
        if not self._fast.cover(texts, encoded):
            raise ValueError(f"tiktoken passed over some of {texts[0][:50]!r}…; please report this")
        return encoded

    def encode_by_reference(self, texts: Sequence[str]) -> list[np.ndarray]:
        encodings = self._engine.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        if self.token_bytes is not None:
            return b"".join([self.token_bytes[each] for each in ids]).decode(errors="replace")
        return self._engine.decode(ids, skip_special_tokens=False)

    @functools.cached_property
    def token_bytes(self) -> list[bytes] | None:
        """What each id stands for, where that does not depend on its neighbours."""
        if self._is_byte_level():
            spell = self._spell_byte_level
        elif self._has_byte_fallback():
            spell = _spell_byte_fallback
        else:
            return None
        found = [b""] * self.num_ids
        for token, token_id in self._engine.get_vocab(with_added_tokens=False).items():
            found[token_id] = spell(token)
        for token in self._json.get("added_tokens", ()):
            found[token["id"]] = token["content"].encode()
        return found

    def _spell_byte_level(self, token: str) -> bytes:
        bare = token.removeprefix(self._prefix()) if self._prefix() else token
        found = byte_level.to_bytes(bare)
        return token.encode() if found is None else found

    def _prefix(self) -> str:
        return self._json["model"].get("continuing_subword_prefix") or ""

    def _is_byte_level(self) -> bool:
        steps = _steps(self._json.get("decoder"), "decoders")
        if not steps or steps[-1]["type"] != "ByteLevel":
            return False
        prefix = self._prefix()
        without = {"type": "Replace", "pattern": {"Regex": f"^{prefix}"}, "content": ""}
        return steps[:-1] == ([without] if prefix else [])

    def _has_byte_fallback(self) -> bool:
        steps = _steps(self._json.get("decoder"), "decoders")
        return [step["type"] for step in steps] == ["Replace", "ByteFallback", "Fuse"] and (
            steps[0]["pattern"] == {"String": "▁"} and steps[0]["content"] == " "
        )

    def with_special_tokens(self, names: Sequence[str]) -> bytes:
        """The file with further special tokens: reserved ids are named first, then ids added."""
        content = json.loads(self.content)
        free = [each for each in content["added_tokens"] if _is_free(each)]
        next_id = self.num_ids
        for name in names:
            if free:
                free.pop(0)["content"] = name
                continue
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            content["added_tokens"].append(
                {"id": next_id, "content": name, **flags, "special": True}
            )
            next_id += 1
        return serialized(content)


def serialized(content: Any) -> bytes:
    """The bytes of a `tokenizer.json`, as the library writes it."""
    return json.dumps(content, indent=2, ensure_ascii=False).encode()


def _is_free(token: dict[str, Any]) -> bool:
    return token["special"] and special_tokens.is_reserved(token["content"])


def _steps(part: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    return list(part[key]) if part["type"] == "Sequence" else [part]


def _spell_byte_fallback(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def _portions(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Neighbouring texts that are worth a thread's while."""
    start = size = 0
    for number, text in enumerate(texts, 1):
        size += len(text)
        if size >= _PORTION_CHARS or number == len(texts):
            yield texts[start:number]
            start, size = number, 0


@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    """One pool for all tokenizers; the engines let other threads run meanwhile."""
    return concurrent.futures.ThreadPoolExecutor(os.cpu_count(), "encode")


# A child that was forked has the pool but not its threads.
os.register_at_fork(after_in_child=_threads.cache_clear)
