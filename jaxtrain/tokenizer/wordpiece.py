"""Learning a WordPiece vocabulary over bytes, and reading a `vocab.json` of somebody's.

WordPiece looks up the longest token that a word begins with, and goes on behind it with tokens that
are marked as continuations. Here words are cut and spelled in bytes as for byte-level BPE, so that
white space survives and no word is unknown. CONTINUATION is a character that spells no byte: by
BERT's "##" a text's own number signs could not be told from the mark.

Trained by the `tokenizers` library, which chooses tokens as for BPE. It numbers continuations as
its hash table yields them; naming all of them beforehand makes the result the same each time.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from jaxtrain.tokenizer import bpe, byte_level
from jaxtrain.tokenizer.special_tokens import CONTROL_TOKENS
from jaxtrain.tokenizer.tokenizer import Tokenizer
from jaxtrain.tokenizer.tokenizer_json import serialized

CONTINUATION: Final = "‿"
_UNKNOWN: Final = "[UNK]"
_MAX_WORD_CHARS: Final = 100  # bytes; the library makes a longer word unknown
_MAX_WORD: Final = _MAX_WORD_CHARS // 4  # characters, of at most 4 bytes


def train(
    texts: Iterable[str],
    vocab_size: int,
    special: Sequence[str] = CONTROL_TOKENS,
    normalization: str = "identity",
) -> Tokenizer:
    """Learns a vocabulary of exactly `vocab_size` ids from `texts`; arguments as for `bpe.train`.

    Raises:
      ValueError: where the size is too small for all bytes, each twice, or larger than the text
        supports.
    """
    alphabet = sorted(byte_level.BYTE_OF)
    alphabet += [CONTINUATION + character for character in alphabet]
    bpe.check_size(vocab_size, len(alphabet), special)
    engine = tokenizers.Tokenizer(models.WordPiece())
    engine.normalizer = normalizers.NFKC() if normalization == "nfkc" else None
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(byte_level.PATTERN), "isolated"),
            pre_tokenizers.Split(tokenizers.Regex(rf"(?m:.){{1,{_MAX_WORD}}}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size - len(special),
        min_frequency=bpe.MIN_PAIR_COUNT,
        special_tokens=alphabet,  # the way to fix their ids; they are made ordinary below
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    engine.train_from_iterator(bpe.within_limit(texts), trainer)
    content = json.loads(engine.to_str())
    content["added_tokens"] = []
    content["model"]["vocab"] = dict(
        sorted(content["model"]["vocab"].items(), key=lambda item: item[1])
    )
    bpe.check_reached(vocab_size, len(content["model"]["vocab"]) + len(special))
    return _build(content["model"], content, special)


def from_vocab(
    vocab: Mapping[str, int],
    continuation: str,
    unknown: str = _UNKNOWN,
    special: Sequence[str] = (),
) -> Tokenizer:
    """A tokenizer of a given vocabulary, in BERT's form: words are cut at white space.

    Args:
      continuation: what a token that does not begin a word begins with ("##", "@@").
    """
    engine = tokenizers.Tokenizer(
        models.WordPiece(
            dict(vocab),
            unk_token=unknown,
            max_input_chars_per_word=_MAX_WORD_CHARS,
            continuing_subword_prefix=continuation,
        )
    )
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece(prefix=continuation, cleanup=False)
    engine.add_special_tokens(list(special))
    return Tokenizer(engine.to_str().encode())


def _build(model: dict[str, Any], content: dict[str, Any], special: Sequence[str]) -> Tokenizer:
    model = model | {
        "unk_token": _UNKNOWN,
        "continuing_subword_prefix": CONTINUATION,
        "max_input_chars_per_word": _MAX_WORD_CHARS,
    }
    decoder = decoders.Sequence(
        [decoders.Replace(tokenizers.Regex(f"^{CONTINUATION}"), ""), decoders.ByteLevel()]
    )
    engine = tokenizers.Tokenizer.from_str(serialized(content | {"model": model}).decode())
    engine.decoder = decoder
    engine.add_special_tokens(list(special))
    return Tokenizer(engine.to_str().encode())
