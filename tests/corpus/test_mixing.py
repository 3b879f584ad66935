import numpy as np

from jaxtrain.corpus.mixing import mix


def _finalizer(value):
    """MurmurHash3's fmix64 on Python integers."""
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD % 2**64
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 % 2**64
    return value ^ (value >> 33)


def test_mix_is_the_finalizer_of_murmurhash3():
    values = [0, 1, 2**32, 2**63, 2**64 - 1, 0x0123456789ABCDEF]
    assert mix(np.array(values, np.uint64)).tolist() == [_finalizer(value) for value in values]


def test_mix_leaves_its_argument_alone():
    values = np.arange(5, dtype=np.uint64)
    mix(values)
    assert values.tolist() == [0, 1, 2, 3, 4]
