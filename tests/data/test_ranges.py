import numpy as np
import pytest

from jaxtrain.data.ranges import ranges


@pytest.mark.parametrize(
    ("starts", "lengths"), [([], []), ([5], [0]), ([3, 10, 0, 7], [2, 0, 3, 1])]
)
def test_ranges_are_the_integers_of_each_one_after_another(starts, lengths):
    expected = [i for a, n in zip(starts, lengths, strict=True) for i in range(a, a + n)]
    assert ranges(np.array(starts, int), np.array(lengths, int)).tolist() == expected
