import lzma
import math
import random

from jaxtrain.corpus import baselines
from jaxtrain.corpus.baselines import compressor_bits_per_byte

# How far above the entropy both compressors may be: matches found by chance cost them a sixth.
_OVERHEAD = 1.2


def _rates(*texts):
    rates, num_bytes = compressor_bits_per_byte(texts)
    assert num_bytes == len("".join(texts).encode())
    return rates


def test_random_letters_cost_their_entropy():
    # 16 equally likely letters: no code does better than 4 bits for a byte.
    letters = "".join(random.Random(0).choices("abcdefghijklmnop", k=200_000))
    for rate in _rates(letters).values():
        assert math.log2(16) <= rate < math.log2(16) * _OVERHEAD


def test_rate_is_per_byte_not_per_character():
    # The same 16-letter source in two-byte letters: as many bits a letter, half as many a byte.
    letters = "".join(random.Random(0).choices("абвгдежзийклмноп", k=200_000))
    assert math.log2(16) / 2 <= _rates(letters)["lzma"] < math.log2(16) / 2 * _OVERHEAD


def test_lzma_is_that_of_its_preset():
    text = "".join(
        random.Random(0).choices(["some", "words", "that", "come", "again", ""], k=100_000)
    )
    theirs = len(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    assert _rates(text)["lzma"] == 8 * theirs / len(text)


def test_documents_are_compressed_as_one_stream():
    text = "".join(random.Random(0).choices("abcdefghijklmnop", k=50_000))
    assert _rates(text, text)["lzma"] < 0.6 * _rates(text)["lzma"]


def test_no_more_than_the_limit_is_compressed_and_it_says_how_much(monkeypatch):
    monkeypatch.setattr(baselines, "MAX_BYTES", 1000)
    endless = iter(lambda: "some text ", "")
    assert compressor_bits_per_byte(endless)[1] == 1000
    assert compressor_bits_per_byte(["ten bytes "])[1] == 10


def test_no_text_has_no_rates():
    assert compressor_bits_per_byte(["", ""]) == ({}, 0)
