"""`Tokenizer`: text to ids and back, one interface over every kind of vocabulary.

A tokenizer is one file and what stands beside it:

    tokenizer.json          of the `tokenizers` library: byte-level BPE, WordPiece, unigram, any
      or tokenizer.model    of SentencePiece
    tokenizer_config.json   which token has which role; `transformers` reads it too

`encode` reads text as text: what looks like a special token in it is not one. Special tokens are
put in by id (`special_ids`). Other tokens that a foreign file adds to its vocabulary (without
`"special": true`) are read from the text as that file says.
"""

import hashlib
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jaxtrain import files
from jaxtrain.tokenizer import special_tokens
from jaxtrain.tokenizer.sentencepiece_model import SentencePieceModel
from jaxtrain.tokenizer.streaming import StreamDecoder
from jaxtrain.tokenizer.tokenizer_json import TokenizerJson


class Tokenizer:
    """Text to ids and back. Pickles as its content."""

    def __init__(self, content: bytes, roles: Mapping[str, str] | None = None) -> None:
        """Args:
          content: of a `tokenizer.json` or a SentencePiece `.model`.
          roles: role ("bos", "eos", …) → token; by default those that the tokens are named for.

        Raises:
          ValueError: where the content is no tokenizer, or has no token that a role names.
        """
        is_json = content.lstrip()[:1] == b"{"
        self._engine = TokenizerJson(content) if is_json else SentencePieceModel(content)
        if roles is None:
            roles = special_tokens.roles_by_name(self._engine.find)
            if isinstance(self._engine, SentencePieceModel):
                roles = self._engine.roles() | roles
        self._roles = dict(roles)
        found = {role: self._engine.find(token) for role, token in self._roles.items()}
        for role, token_id in found.items():
            if token_id is None:
                raise ValueError(
                    f"the token {self._roles[role]!r} for {role} is not in the vocabulary; "
                    f"correct {special_tokens.CONFIG_FILE}"
                )
        #: Role → id, of the roles that this tokenizer has.
        self.special_ids: Mapping[str, int] = {
            role: token_id for role, token_id in found.items() if token_id is not None
        }

    def __reduce__(self):
        return Tokenizer, (self._engine.content, self._roles)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Reads a tokenizer.

        Args:
          path: of a `tokenizer.json` or `.model`, or of a directory with one (the first where it
            has both), such as a Hugging Face model's or one that `tokenize train` wrote. Roles are
            read from the files beside a file of either usual name.

        Raises:
          ValueError: names the file and why it is no tokenizer.
        """
        path = pathlib.Path(path)
        if path.is_dir():
            path = _file_in(path)
        if not path.is_file():
            raise ValueError(f"no tokenizer at {path}; give its folder, or its file in there")
        content = path.read_bytes()
        is_usual = path.name in (special_tokens.JSON_FILE, special_tokens.MODEL_FILE)
        roles = special_tokens.read_roles(path.parent) if is_usual else None
        try:
            return cls(content, roles)
        except ValueError as error:
            raise ValueError(f"{path} is not a usable tokenizer: {error}") from error

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes `files` into a directory, each whole or not at all."""
        for name, content in self.files.items():
            with files.write_whole(pathlib.Path(directory, name)) as file:
                file.write(content)

    @property
    def files(self) -> Mapping[str, bytes]:
        """Name → content of the files that are this tokenizer."""
        described = special_tokens.described(self._roles, self._engine.special_names)
        return {self._engine.file_name: self._engine.content, special_tokens.CONFIG_FILE: described}

    @property
    def transformers_files(self) -> Mapping[str, bytes]:
        """Name → content of files that `transformers` loads as the same tokenizer.

        Raises:
          ValueError: for a SentencePiece model that normalises, which has no such form here.
        """
        if isinstance(self._engine, TokenizerJson):
            return self.files
        content = self._engine.to_tokenizer_json()
        return {**Tokenizer(content, self._roles).files}

    @property
    def kind(self) -> str:
        """What vocabulary it is, in words."""
        return self._engine.kind

    @property
    def engine(self) -> str:
        """Which library makes the ids, in words."""
        return self._engine.engine

    @property
    def normalization(self) -> str:
        """What is done to a text before it becomes ids: "identity" is nothing."""
        return self._engine.normalization

    @property
    def sha256(self) -> str:
        """Hash of the tokenizer's file, in hex: vocabulary, splitting and normalisation."""
        return hashlib.sha256(self._engine.content).hexdigest()

    @property
    def vocab_size(self) -> int:
        """The largest id and one, special tokens included: ids are below this."""
        return self._engine.num_ids

    @property
    def special_token_ids(self) -> list[int]:
        """Ids of all special tokens, those with a role or not; no text has them."""
        return sorted({*self._engine.special_names.values(), *self.special_ids.values()})

    @property
    def reserved_ids(self) -> list[int]:
        """Ids without a meaning so far: no text has them, and no sampler should give them."""
        names = self._engine.special_names.items()
        return sorted(number for name, number in names if special_tokens.is_reserved(name))

    def control_id(self, name: str) -> int:
        """The id of a special token, by its role ("eos") or its own text ("<|eos|>").

        Raises:
          ValueError: where the tokenizer has no such special token.
        """
        by_token = {token: self.special_ids[role] for role, token in self._roles.items()}
        found = {**self._engine.special_names, **by_token, **self.special_ids}.get(name)
        if found is None:
            has = sorted(self.special_ids) + [
                each for each in self._engine.special_names if not special_tokens.is_reserved(each)
            ]
            raise ValueError(f"{name!r} is no special token; it has {', '.join(has) or 'none'}")
        return found

    def token(self, token_id: int) -> str:
        """How the vocabulary writes a token, for people to look at."""
        self._check([token_id])
        return self._engine.token(token_id) or ""

    def with_special_tokens(self, names: Sequence[str]) -> "Tokenizer":
        """This tokenizer with further special tokens; no id moves and no text's ids change.

        The first take the place of reserved ids; when those are used up, ids are added.

        Raises:
          ValueError: where a name is taken already.
        """
        for number, name in enumerate(names):
            taken = self._engine.find(name)
            if taken is not None or name in names[:number] or not name:
                raise ValueError(
                    f"the special token {name!r} is empty, given twice, or in the vocabulary "
                    f"already (id {taken}); choose another name, such as <|{name or 'name'}|>"
                )
        extended = Tokenizer(self._engine.with_special_tokens(names), self._roles)
        return Tokenizer(
            extended._engine.content,
            special_tokens.roles_by_name(extended._engine.find) | self._roles,
        )

    def encode(self, text: str) -> np.ndarray:
        """The ids (uint32) of a text, nothing added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text, in order, computed on all cores.

        Raises:
          ValueError: for a text with a lone surrogate, which has no bytes.
        """
        for text in texts:
            refuse_surrogates(text)
        return self._engine.encode_batch(texts)

    def encode_by_reference(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As `encode_batch`, by the library that defines the file; slower or the same."""
        for text in texts:
            refuse_surrogates(text)
        return self._engine.encode_by_reference(texts)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens by name; bytes that are no UTF-8 become U+FFFD.

        Raises:
          ValueError: for an id that the vocabulary does not have.
        """
        ids = [int(each) for each in ids]
        self._check(ids)
        return self._engine.decode(ids)

    @property
    def token_bytes(self) -> Sequence[bytes] | None:
        """What each id stands for; None where that depends on the ids beside it."""
        return self._engine.token_bytes

    def stream(self, after: Sequence[int] = ()) -> StreamDecoder:
        """A decoder for ids that arrive one at a time, behind the text of the ids `after`.

        Where a tokenizer takes the space off the beginning of a text, a stream that goes on from
        some text keeps it.
        """
        return StreamDecoder(self.token_bytes, self.decode, after)

    def _check(self, ids: Sequence[int]) -> None:
        outside = [each for each in ids if not 0 <= each < self.vocab_size]
        if outside:
            raise ValueError(f"id {outside[0]} is not below the vocabulary's {self.vocab_size}")


def refuse_surrogates(text: str) -> bytes:
    """The bytes of a text.

    Raises:
      ValueError: where a lone surrogate has none.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text has the lone surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start}, which has no bytes; repair the text where it was read"
        ) from error


def _file_in(directory: pathlib.Path) -> pathlib.Path:
    for name in (special_tokens.JSON_FILE, special_tokens.MODEL_FILE):
        if (directory / name).is_file():
            return directory / name
    raise ValueError(
        f"{directory} holds no {special_tokens.JSON_FILE} and no {special_tokens.MODEL_FILE}"
    )
