"""Tokenizers of the `sentencepiece` library: a `.model` file, unigram or BPE.

In a SentencePiece vocabulary "▁" (U+2581) stands for a space, so that a text's own U+2581 comes
back as a space: the one character that these tokenizers do not keep apart. What else they change
(normalisation, a space put before the text) is what the file says; those trained here change
nothing else.
"""

import functools
import itertools
import os
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from jaxtrain.tokenizer import special_tokens
from jaxtrain.tokenizer.tokenizer_json import serialized

SPACE: Final = "▁"

#: A line and the break before it.
LINES: Final = re.compile(r"\n[^\n]*|[^\n]+")
_MIN_LINES_PER_THREAD = 64  # below that starting a thread costs more than it saves
_UNKNOWN, _CONTROL, _BYTE = 2, 3, 6  # ModelProto.SentencePiece.Type


class SentencePieceModel:
    """The engine of a SentencePiece `.model`."""

    file_name = special_tokens.MODEL_FILE

    def __init__(self, content: bytes) -> None:
        """Args: content: of the file.

        Raises:
          ValueError: where it is no SentencePiece model.
        """
        self.content = content
        self._proto = new_proto()
        try:
            self._proto.ParseFromString(content)
            if not self._proto.pieces:
                raise ValueError("it has no pieces")
            self._engine = sentencepiece.SentencePieceProcessor(model_proto=content)
        except Exception as error:  # of the protobuf library's own, or RuntimeError
            raise ValueError(f"not a SentencePiece model: {error}") from error
        self.num_ids = self._engine.get_piece_size()
        self.special_names = {
            piece.piece: number
            for number, piece in enumerate(self._proto.pieces)
            if piece.type in (_UNKNOWN, _CONTROL)
        }

    @property
    def kind(self) -> str:
        """In words, for people."""
        return f"SentencePiece {'BPE' if self._is_bpe() else 'unigram'}"

    def _is_bpe(self) -> bool:
        spec = self._proto.trainer_spec
        return spec.model_type == spec.BPE

    @property
    def engine(self) -> str:
        """Which library makes the ids."""
        return "sentencepiece"

    @property
    def normalization(self) -> str:
        """What is done to a text before it is cut, in the library's words."""
        spec = self._proto.normalizer_spec
        name = "identity" if not spec.precompiled_charsmap else spec.name or "as in the file"
        extras = [
            what
            for what, is_done in (
                ("a space put before the text", spec.add_dummy_prefix),
                ("repeated spaces taken away", spec.remove_extra_whitespaces),
            )
            if is_done
        ]
        return ", ".join([name, *extras])

    def roles(self) -> dict[str, str]:
        """Role → token, as the model itself says."""
        ids = {
            "bos": self._engine.bos_id(),
            "eos": self._engine.eos_id(),
            "pad": self._engine.pad_id(),
            "unk": self._engine.unk_id(),
        }
        return {
            role: self._engine.id_to_piece(number) for role, number in ids.items() if number >= 0
        }

    def token(self, token_id: int) -> str | None:
        return self._engine.id_to_piece(token_id)

    def find(self, token: str) -> int | None:
        found = self._engine.piece_to_id(token)
        return found if self._engine.id_to_piece(found) == token else None

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        pieces = [LINES.findall(text) if self._cuts_at_lines else [text] for text in texts]
        flat = [piece for each in pieces for piece in each]
        num_threads = max(1, min(len(flat) // _MIN_LINES_PER_THREAD, os.cpu_count() or 1))
        found = iter(self._engine.encode(flat, num_threads=num_threads) if flat else ())
        return [
            np.fromiter(
                itertools.chain.from_iterable(itertools.islice(found, len(each))), np.uint32
            )
            for each in pieces
        ]

    @functools.cached_property
    def _cuts_at_lines(self) -> bool:
        """Whether the lines of a text can be encoded one by one: no piece reaches over a break.

        The ids are those of the whole text, but for sums of scores: along a whole document the
        library's 32 bits round them by more than scores differ.
        """
        return self.normalization == "identity" and not any(
            "\n" in piece.piece[1:] for piece in self._proto.pieces
        )

    encode_by_reference = encode_batch

    def decode(self, ids: Sequence[int]) -> str:
        if self.token_bytes is not None:
            return b"".join([self.token_bytes[each] for each in ids]).decode(errors="replace")
        text, run = "", []
        for each in ids:  # the library leaves special tokens out
            if (name := self._engine.id_to_piece(each)) in self.special_names:
                text += (self._engine.decode(run) if run else "") + name
                run = []
            else:
                run.append(each)
        return text + (self._engine.decode(run) if run else "")

    @functools.cached_property
    def token_bytes(self) -> list[bytes] | None:
        """What each id stands for; None where the model puts a space before a text."""
        if self._proto.normalizer_spec.add_dummy_prefix:
            return None
        return [_spell(piece) for piece in self._proto.pieces]

    def with_special_tokens(self, names: Sequence[str]) -> bytes:
        """The file with further special tokens: reserved ids are named first, then ids added."""
        proto = new_proto()
        proto.CopyFrom(self._proto)
        free = [each for each in proto.pieces if special_tokens.is_reserved(each.piece)]
        for name in names:
            if free:
                free.pop(0).piece = name
            else:
                proto.pieces.add(piece=name, score=0.0, type=_CONTROL)
        return proto.SerializeToString(deterministic=True)

    def to_tokenizer_json(self) -> bytes:
        """The same tokenizer as a `tokenizer.json`, which `transformers` loads.

        Raises:
          ValueError: where the model does something to a text that has no such form here.
        """
        if not (self._cuts_at_lines and self._proto.trainer_spec.byte_fallback):
            raise ValueError(
                "only a model with byte fallback, without normalisation and without tokens that "
                f"reach over a line break has such a form; this one has {self.normalization}"
            )
        pieces = [(piece.piece, piece.score) for piece in self._proto.pieces]
        content = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    **{"id": number, "content": name, "single_word": False, "lstrip": False},
                    **{"rstrip": False, "normalized": False, "special": True},
                }
                for name, number in self.special_names.items()
            ],
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"String": "\n"},
                "behavior": "MergedWithNext",
                "invert": False,
            },
            "post_processor": None,
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                ],
            },
            "model": self._bpe_json(pieces) if self._is_bpe() else self._unigram_json(pieces),
        }
        return serialized(content)

    def _unigram_json(self, pieces: Sequence[tuple[str, float]]) -> dict[str, Any]:
        # Special tokens at the end are left to `added_tokens`: the library's unigram model would
        # find them in texts.
        controls = [number for number, p in enumerate(self._proto.pieces) if p.type == _CONTROL]
        num_pieces = len(pieces) - len(controls)
        if any(number < num_pieces for number in controls):
            raise ValueError("its special tokens are not its last ids")
        return {
            "type": "Unigram",
            "unk_id": self._engine.unk_id(),
            "vocab": pieces[:num_pieces],
            "byte_fallback": True,
        }

    def _bpe_json(self, pieces: Sequence[tuple[str, float]]) -> dict[str, Any]:
        """All pairs that make a piece, in the order of the pieces' scores."""
        vocab = {piece: number for number, (piece, _) in enumerate(pieces)}
        ordinary = {
            piece.piece: piece.score
            for piece in self._proto.pieces
            if piece.type not in (_UNKNOWN, _CONTROL, _BYTE)
        }
        merges = [
            (-score, vocab[piece[:cut]], vocab[piece[cut:]], [piece[:cut], piece[cut:]])
            for piece, score in ordinary.items()
            for cut in range(1, len(piece))
            if piece[:cut] in ordinary and piece[cut:] in ordinary
        ]
        return {
            "type": "BPE",
            "dropout": None,
            "unk_token": self._engine.id_to_piece(self._engine.unk_id()),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [pair for *_, pair in sorted(merges)],
        }


def new_proto() -> Any:
    """An empty ModelProto: what is in a `.model`."""
    # Made at import by protobuf, where no type checker sees it.
    return sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]


def _spell(piece: Any) -> bytes:
    if piece.type == _BYTE:
        return bytes([int(piece.piece[3:-1], 16)])
    return (
        piece.piece.encode()
        if piece.type in (_UNKNOWN, _CONTROL)
        else (piece.piece.replace(SPACE, " ").encode())
    )
