import math
import random

from jaxtrain.corpus import baselines
from jaxtrain.corpus.baselines import compressor_bits_per_byte

# How far above the entropy both compressors may be: matches found by chance cost them a sixth.
_OVERHEAD = 1.2


def _rates(*texts):
    found = compressor_bits_per_byte(texts)
    return {name: found[name] for name in ("zlib", "lzma")}


def test_random_letters_cost_their_entropy():
    # 16 equally likely letters: no code does better than 4 bits for a byte.
    letters = "".join(random.Random(0).choices("abcdefghijklmnop", k=200_000))
    for rate in _rates(letters).values():
        assert math.log2(16) <= rate < math.log2(16) * _OVERHEAD


def test_rate_is_per_byte_not_per_character():
    # The same 16-letter source in two-byte letters: as many bits a letter, half as many a byte.
    letters = "".join(random.Random(0).choices("абвгдежзийклмноп", k=200_000))
    assert math.log2(16) / 2 <= _rates(letters)["lzma"] < math.log2(16) / 2 * _OVERHEAD


def test_documents_are_compressed_as_one_stream():
    text = "".join(random.Random(0).choices("abcdefghijklmnop", k=50_000))
    assert _rates(text, text)["lzma"] < 0.6 * _rates(text)["lzma"]


def test_no_more_than_the_limit_is_compressed_and_it_says_how_much(monkeypatch):
    monkeypatch.setattr(baselines, "MAX_BYTES", 1000)
    endless = iter(lambda: "some text ", "")
    assert compressor_bits_per_byte(endless)["of_bytes"] == 1000
    assert compressor_bits_per_byte(["ten bytes "])["of_bytes"] == 10


def test_no_text_has_no_rates():
    assert compressor_bits_per_byte(["", ""]) == {}
