"""Learning a SentencePiece vocabulary, unigram or BPE, without its library's usual losses.

 - Nothing is normalised unless asked, no space is put before a text and none is taken away.
 - What the vocabulary lacks is spelled in bytes, so that nothing is unknown.
 - Texts are learned from line by line, each with the break before it, and a long line in pieces:
   none is left out (the library passes by lines above 4,192 bytes) and line breaks are learned.
 - Runs of spaces can be tokens, digits are single.
 - The model is made in memory: a size that the text does not support leaves no file.

Deterministic: lines are sorted first, so their order changes nothing, and the number of threads,
which decides the order of floating-point sums, is always the same.
"""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import sentencepiece

from jaxtrain.tokenizer import bpe
from jaxtrain.tokenizer.sentencepiece_model import LINES, new_proto
from jaxtrain.tokenizer.special_tokens import CONTROL_TOKENS
from jaxtrain.tokenizer.tokenizer import Tokenizer, refuse_surrogates

UNIGRAM: Final = "unigram"
BPE: Final = "bpe"

_NUM_THREADS: Final = 16  # never the machine's: sums of floats depend on it
_MAX_PIECE_CHARS: Final = 4_000  # of a line given to the library at once
_MAX_PIECE_BYTES: Final = 4 * _MAX_PIECE_CHARS + 1
#: Of all characters, those that get ids of their own; SentencePiece's usual value. The rest, rare
#: ones, are spelled in bytes.
_CHARACTER_COVERAGE: Final = 0.9995
# Reserved in training: lines with them would be passed by. In encoding they are spelled in bytes.
# A space in it keeps `tokenizers`, which cuts out any piece it finds, from finding it in a text.
_UNKNOWN: Final = "< unk >"
# Scores (nats) become multiples of this, so that sums along a line are exact in 32 bits and equally
# likely ways to cut it are ties for every library, not a matter of rounding.
_SCORE_STEP: Final = 2.0**-8
_RESERVED: Final = str.maketrans({"\0": " ", "\u2585": " "})


def train(
    texts: Iterable[str],
    vocab_size: int,
    special: Sequence[str] = CONTROL_TOKENS,
    normalization: str = "identity",
    *,
    model_type: str = UNIGRAM,
) -> Tokenizer:
    """Learns a vocabulary of exactly `vocab_size` ids from `texts`; arguments as for `bpe.train`.

    Raises:
      ValueError: where the size is too small for bytes and frequent characters, or larger than the
        text supports, naming the bound.
    """
    bpe.check_size(vocab_size, 257, special)
    lines = sorted(_lines(bpe.within_limit(texts)))
    if not lines:
        raise ValueError("there is no text to train on")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size - len(special),
            character_coverage=_CHARACTER_COVERAGE,
            normalization_rule_name=normalization,
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            byte_fallback=True,
            max_sentence_length=_MAX_PIECE_BYTES,
            num_threads=_NUM_THREADS,
            unk_id=0,
            unk_piece=_UNKNOWN,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explained(error, vocab_size, len(special)) from error
    return Tokenizer(_settled(model.getvalue())).with_special_tokens(special)


def _lines(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for line in LINES.findall(text):
            line = line.translate(_RESERVED)
            while len(line) > _MAX_PIECE_CHARS:
                cut = line.rfind(" ", 1, _MAX_PIECE_CHARS)
                cut = cut if cut > 0 else _MAX_PIECE_CHARS
                yield line[:cut]
                line = line[cut:]
            refuse_surrogates(line)
            yield line


def _settled(content: bytes) -> bytes:
    proto = new_proto()
    proto.ParseFromString(content)
    for piece in proto.pieces:
        piece.score = round(piece.score / _SCORE_STEP) * _SCORE_STEP
    return proto.SerializeToString(deterministic=True)


def _explained(error: RuntimeError, vocab_size: int, num_special: int) -> ValueError:
    message = " ".join(str(error).split())
    if found := re.search(r"value <= (\d+)", message):
        largest = int(found[1]) + num_special
        return ValueError(
            f"vocab_size={vocab_size} must be at most {largest} for this text; lower it or add text"
        )
    if found := re.search(r"required_chars\. \d+ vs (\d+)", message):
        smallest = int(found[1]) + num_special
        return ValueError(
            f"vocab_size={vocab_size} must be at least {smallest} for this text: all bytes, its "
            f"frequent characters and {num_special} special tokens"
        )
    return ValueError(f"SentencePiece cannot learn from this text: {message}")
