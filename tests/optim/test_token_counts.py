import pytest

from jaxtrain.optim.token_counts import stages, tokens_before

RAMP = ((0, 10), (4, 20), (6, 50))
PER_STEP = [10, 10, 10, 10, 20, 20, 50, 50, 50]


def test_tokens_before_is_a_multiple_when_the_batch_is_constant():
    assert [tokens_before(n, 7) for n in (0, 1, 5)] == [0, 7, 35]


def test_tokens_before_sums_every_step_of_a_ramp():
    expected = [sum(PER_STEP[:n]) for n in range(len(PER_STEP) + 1)]
    assert [tokens_before(n, RAMP) for n in range(len(PER_STEP) + 1)] == expected


def test_tokens_before_stays_exact_beyond_32_bits():
    assert tokens_before(10**6, 2**23) == 10**6 * 2**23


@pytest.mark.parametrize("pairs", [(), ((1, 10),), ((0, 10), (5, 20), (5, 30))])
def test_stages_must_begin_at_step_0_and_differ(pairs):
    with pytest.raises(AssertionError):
        stages(pairs)
