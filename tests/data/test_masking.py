import numpy as np
import pytest

from jaxtrain.data.masking import mask_tokens
from jaxtrain.types import Batch

MASK, VOCAB = 3, 1000
B, T = 64, 512
ROWS = np.arange(1000, 1000 + B)


def make_batch(num_real=T):
    inputs = np.random.default_rng(0).integers(10, VOCAB, (B, T), dtype=np.int32)
    real = np.arange(T) < num_real
    segment_ids = np.broadcast_to(real.astype(np.int32), (B, T))
    positions = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
    weights = segment_ids.astype(np.float32)
    return Batch(inputs, np.roll(inputs, -1, 1), weights, positions, segment_ids)


def masked(batch, rows=ROWS, key=7, mask_frac=0.15):
    return mask_tokens(batch, rows, key=key, mask_frac=mask_frac, mask_id=MASK, vocab_size=VOCAB)


def test_targets_are_the_unmasked_tokens_and_the_rest_stays():
    batch = make_batch()
    result = masked(batch)
    assert np.array_equal(result.targets, batch.inputs)
    unchosen = result.loss_weights == 0
    assert np.array_equal(result.inputs[unchosen], batch.inputs[unchosen])
    assert result.positions is batch.positions
    assert result.segment_ids is batch.segment_ids
    assert result.inputs.dtype == np.int32


def within_5_sigma(count, total, fraction):
    return abs(count - total * fraction) < 5 * np.sqrt(total * fraction * (1 - fraction))


@pytest.mark.parametrize("mask_frac", [0.15, 0.4])
def test_chosen_fraction_and_its_80_10_10_split(mask_frac):
    batch = make_batch()
    result = masked(batch, mask_frac=mask_frac)
    chosen = result.loss_weights == 1
    assert within_5_sigma(chosen.sum(), B * T, mask_frac)
    became, was = result.inputs[chosen], batch.inputs[chosen]
    assert within_5_sigma((became == MASK).sum(), chosen.sum(), 0.8)
    assert within_5_sigma((became == was).sum(), chosen.sum(), 0.1)
    replaced = became[(became != MASK) & (became != was)]
    assert within_5_sigma(len(replaced), chosen.sum(), 0.1)
    assert abs(replaced.mean() - VOCAB / 2) < 5 * VOCAB / np.sqrt(12 * len(replaced))
    assert replaced.max() < VOCAB


def test_positions_are_chosen_alike_and_independently():
    chosen = masked(make_batch()).loss_weights
    assert np.abs(chosen.mean(0) - 0.15).max() < 5 * np.sqrt(0.15 * 0.85 / B)
    pairs = (chosen[:, 1:] * chosen[:, :-1]).mean()
    assert abs(pairs - 0.15**2) < 5 * np.sqrt(0.15**2 / (B * T))


def test_filler_is_never_chosen_or_changed():
    batch = make_batch(num_real=100)
    result = masked(batch)
    assert not result.loss_weights[:, 100:].any()
    assert np.array_equal(result.inputs[:, 100:], batch.inputs[:, 100:])
    assert result.loss_weights[:, :100].any()


def test_masks_are_a_function_of_key_and_global_row():
    batch = make_batch()
    whole = masked(batch)
    part = masked(Batch(*(array[10:20] for array in batch)), rows=ROWS[10:20])
    for a, b in zip(whole, part, strict=True):
        assert np.array_equal(a[10:20], b)
    for other in (masked(batch, key=8), masked(batch, rows=ROWS + B)):
        agree = ((other.loss_weights == 1) & (whole.loss_weights == 1)).sum()
        assert within_5_sigma(agree, B * T, 0.15**2)
