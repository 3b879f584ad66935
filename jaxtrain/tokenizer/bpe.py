"""Learning a byte-level BPE vocabulary: lossless, total, the default.

A text becomes its UTF-8 bytes, each of which is a token, and no normaliser touches it unless asked:
every text has ids, and they give back exactly that text. It is cut by `byte_level.PATTERN` before
pairs are merged. Trained by the `tokenizers` library; the file is a standard `tokenizer.json`.

Training is deterministic: of two pairs that occur equally often the one of lower ids is merged
first, whatever the order of the text, the number of threads or the process.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from jaxtrain.tokenizer import byte_level
from jaxtrain.tokenizer.special_tokens import BOS, CONTROL_TOKENS, EOS
from jaxtrain.tokenizer.tokenizer import Tokenizer, refuse_surrogates

__all__ = ["BOS", "CONTROL_TOKENS", "EOS", "Tokenizer", "train"]

MIN_PAIR_COUNT: Final = 2  # a pair that occurs once says nothing about other text
#: The library counts pairs in 32 bits and would wrap around; no pair occurs more often than bytes.
MAX_TRAINING_BYTES: Final = 2**31


def train(
    texts: Iterable[str],
    vocab_size: int,
    special: Sequence[str] = CONTROL_TOKENS,
    normalization: str = "identity",
) -> Tokenizer:
    """Learns a vocabulary of exactly `vocab_size` ids from `texts`, `special` included.

    Args:
      special: tokens that get the last ids.
      normalization: "identity", or "nfkc" to fold compatibility characters, which loses text.

    Raises:
      ValueError: where the size is too small to hold all bytes, or larger than the text supports.
    """
    check_size(vocab_size, 256, special)
    engine = tokenizers.Tokenizer(models.BPE())
    engine.normalizer = normalizers.NFKC() if normalization == "nfkc" else None
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(byte_level.PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(special),
        min_frequency=MIN_PAIR_COUNT,
        initial_alphabet=sorted(byte_level.BYTE_OF),
        show_progress=False,
    )
    engine.train_from_iterator(within_limit(texts), trainer)
    engine.add_special_tokens(list(special))
    check_reached(vocab_size, engine.get_vocab_size(with_added_tokens=True))
    return Tokenizer(engine.to_str().encode())


def check_size(vocab_size: int, num_bytes: int, special: Sequence[str]) -> None:
    """Raises ValueError where not even bytes and special tokens have ids."""
    smallest = num_bytes + len(special)
    if vocab_size < smallest:
        raise ValueError(
            f"vocab_size={vocab_size} must be at least {smallest}: all bytes and {len(special)} "
            "special tokens"
        )


def check_reached(vocab_size: int, found: int) -> None:
    """Raises ValueError where the text gave fewer ids than asked for."""
    if found < vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size} must be at most {found} for this text, in which no further "
            f"pair occurs {MIN_PAIR_COUNT} times; lower it or add text"
        )


def within_limit(texts: Iterable[str]) -> Iterator[str]:
    """The texts, as long as their pairs can be counted.

    Raises:
      ValueError: at the byte from which on counts could overflow, and for a lone surrogate.
    """
    total = 0
    for text in texts:
        total += len(refuse_surrogates(text))
        if total >= MAX_TRAINING_BYTES:
            raise ValueError(
                f"the text to train on must be below {MAX_TRAINING_BYTES:,} bytes, beyond which "
                "pair counts overflow; train on a sample (--sample_bytes)"
            )
        yield text
