import math
import random

import pytest

from jaxtrain.corpus.baselines import compressor_bits_per_byte
from jaxtrain.corpus.documents import Document

# How far above the entropy both compressors may be: matches found by chance cost them a sixth.
_OVERHEAD = 1.2


def _bits(*texts):
    return compressor_bits_per_byte([Document(str(i), t, "s", {}) for i, t in enumerate(texts)])


def test_random_letters_cost_their_entropy():
    # 16 equally likely letters: no code does better than 4 bits for a byte.
    letters = "".join(random.Random(0).choices("abcdefghijklmnop", k=200_000))
    for rate in _bits(letters).values():
        assert math.log2(16) <= rate < math.log2(16) * _OVERHEAD


def test_rate_is_per_byte_not_per_character():
    # The same 16-letter source in two-byte letters: as many bits a letter, half as many a byte.
    letters = "".join(random.Random(0).choices("абвгдежзийклмноп", k=200_000))
    assert math.log2(16) / 2 <= _bits(letters)["lzma"] < math.log2(16) / 2 * _OVERHEAD


def test_documents_are_compressed_as_one_stream():
    text = "".join(random.Random(0).choices("abcdefghijklmnop", k=50_000))
    assert _bits(text, text)["lzma"] < 0.6 * _bits(text)["lzma"]


def test_no_text_is_an_error():
    with pytest.raises(ValueError, match="no held-out text"):
        _bits("", "")
