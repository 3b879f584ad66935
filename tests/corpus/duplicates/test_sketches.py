import dataclasses

import pytest

from jaxtrain.corpus.duplicates.shingles import CHARACTERS, WORDS, Shingler
from jaxtrain.corpus.duplicates.sketches import MinHash, SimHash

MINHASH = MinHash(Shingler(WORDS, 2), bands=3, rows=2, seed=1)
SIMHASH = SimHash(Shingler(WORDS, 2), max_distance=3)
TEXTS = ["one two three four", "", "One, two; three (four)", "five six seven"]


@pytest.mark.parametrize("sketch", [MINHASH, SIMHASH])
def test_texts_of_equal_shingles_have_equal_keys(sketch):
    keys, fingerprints, num_shingles = sketch(TEXTS)
    assert keys.shape == (4, sketch.num_keys)
    assert num_shingles.tolist() == [3, 0, 3, 2]
    assert (keys[0] == keys[2]).all()
    assert fingerprints[0] == fingerprints[2]
    assert not (keys[0] == keys[3]).any()


@pytest.mark.parametrize("sketch", [MINHASH, SIMHASH])
def test_no_texts_have_no_keys(sketch):
    assert sketch([]).keys.shape == (0, sketch.num_keys)


@pytest.mark.parametrize(
    "other",
    [
        SIMHASH,
        dataclasses.replace(MINHASH, bands=4),
        dataclasses.replace(MINHASH, rows=3),
        dataclasses.replace(MINHASH, seed=2),
        dataclasses.replace(MINHASH, shingler=Shingler(CHARACTERS, 2)),
        dataclasses.replace(MINHASH, shingler=Shingler(WORDS, 3)),
    ],
)
def test_settings_tell_sketches_apart_whose_keys_differ(other):
    assert other.settings != MINHASH.settings
