import itertools
import json
import pathlib

import numpy as np
import pytest

from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.heldout import open_heldout
from tests.data.naive_answers import assert_same, make_groups

LENGTHS = [5, 1, 9, 0, 3, 12, 7]


@pytest.fixture
def make_heldout(make_store, numbered_documents):
    path = make_store(numbered_documents(LENGTHS))

    def make(seed=0, **config):
        config = DataConfig(eval_sources={"held": SourceConfig(path)}, seq_len=6, **config)
        return open_heldout(config, seed)["held"]

    return make


def totals(batches):
    """What a sum over the set depends on: each trained (input, target), without order."""
    pairs = []
    for batch in batches:
        trained = batch.loss_weights > 0
        pairs += zip(batch.inputs[trained].tolist(), batch.targets[trained].tolist(), strict=True)
    return sorted(pairs)


@pytest.mark.parametrize("packing", ["concat", "concat_isolated", "best_fit"])
@pytest.mark.parametrize("objective", ["next_token", "masked_lm"])
def test_totals_do_not_depend_on_batch_size_or_hosts(make_heldout, packing, objective):
    heldout = make_heldout(packing=packing, objective=objective)
    expected = totals(heldout.batches(1))
    assert expected
    for batch_size in (2, 3, 5, 64):
        assert totals(heldout.batches(batch_size)) == expected
        cuts = [0, batch_size // 2, batch_size]
        hosts = [heldout.batches(batch_size, slice(a, b)) for a, b in itertools.pairwise(cuts)]
        assert totals(batch for host in hosts for batch in host) == expected


@pytest.mark.parametrize("packing", ["concat", "concat_isolated", "best_fit"])
def test_each_token_is_read_once_in_batches_of_one_shape(make_heldout, packing):
    heldout = make_heldout(packing=packing)
    batches = list(heldout.batches(4))
    assert len(batches) == heldout.num_batches(4)
    assert {batch.inputs.shape for batch in batches} == {(4, 6)}
    tokens = np.concatenate([batch.inputs[batch.segment_ids > 0] for batch in batches])
    assert sorted(tokens) == list(range(sum(LENGTHS)))
    starts = sum(length > 0 for length in LENGTHS) if packing != "concat" else 1
    assert len(totals(batches)) == sum(LENGTHS) - starts


def test_last_batch_is_filled_with_rows_that_count_nothing(make_heldout):
    *_, last = make_heldout().batches(4)
    assert (last.segment_ids > 0).any(axis=1).tolist() == [True, True, True, False]
    assert not last.loss_weights[3].any()


def test_every_reading_is_the_same_and_in_order(make_heldout):
    heldout = make_heldout()
    for one, other in zip(heldout.batches(4), heldout.batches(4), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    first = next(heldout.batches(4))
    assert first.inputs[:, 0].tolist() == [0, 6, 12, 18]


def test_text_bytes_are_those_of_the_store_where_all_of_it_is_predicted(make_heldout):
    assert make_heldout().text_bytes == 2 * sum(LENGTHS)
    assert make_heldout(objective="masked_lm").text_bytes is None


def test_masks_follow_the_seed(make_heldout):
    config = {"objective": "masked_lm", "mask_frac": 0.5}
    one, same_seed, other = (make_heldout(seed=seed, **config) for seed in (0, 0, 1))
    assert totals(one.batches(4)) == totals(same_seed.batches(4)) != totals(other.batches(4))


@pytest.mark.parametrize(("text_sha256", "rates"), [("h" * 64, {"zlib": 2.0}), ("x" * 64, {})])
def test_compressors_are_compared_on_the_very_text_only(make_store, text_sha256, rates):
    path = make_store([[1, 2, 3, 4]], text_sha256=text_sha256)
    card = {
        "outputs": {"heldout": {"files": {"00000.parquet": "h" * 64}}},
        "heldout_bits_per_byte": {"zlib": 2.0},
    }
    (pathlib.Path(path) / "card.json").write_text(json.dumps(card))
    config = DataConfig(eval_sources={"h": SourceConfig(path)}, seq_len=4)
    assert open_heldout(config, 0)["h"].compressor_rates() == rates


def test_compressors_of_a_store_without_a_card_are_unknown(make_store):
    config = DataConfig(eval_sources={"h": SourceConfig(make_store([[1, 2, 3]]))}, seq_len=3)
    assert open_heldout(config, 0)["h"].compressor_rates() == {}


def test_a_masked_set_has_no_bits_per_byte_as_only_some_of_it_is_predicted(make_store):
    path = make_store([[1, 2, 3]], masks=[[0, 0, 1]])
    config = DataConfig(eval_sources={"held": SourceConfig(path)}, seq_len=6, packing="best_fit")
    heldout = open_heldout(config, 0)["held"]
    assert heldout.text_bytes is None
    assert totals(heldout.batches(1)) == [(2, 3)]


def test_held_out_loss_is_per_token_whatever_counts_in_training(make_heldout):
    per_token = list(make_heldout(packing="best_fit").batches(4))
    per_document = list(make_heldout(packing="best_fit", weighting="document").batches(4))
    for one, other in zip(per_token, per_document, strict=True):
        np.testing.assert_array_equal(one.loss_weights, other.loss_weights)


# ----------------------------------------------------------------------------------------- answers


@pytest.fixture
def make_pairs(write_answers, tmp_path):
    path = write_answers(
        tmp_path / "pairs", "pairs", make_groups("pairs", [(3, 4), (8, 9), (2, 2)])
    )

    def make(references=None, **config):
        config = DataConfig(
            eval_sources={"held": SourceConfig(path)}, seq_len=18, packing="best_fit", **config
        )
        return open_heldout(config, 0, references)["held"]

    return make


def test_a_set_of_answers_is_read_once_with_its_references(make_pairs):
    heldout = make_pairs({"held": -np.arange(6.0)})
    assert (heldout.answers, heldout.text_bytes) == ("pairs", None)
    for batch_size in (1, 2, 5):
        batches = list(heldout.batches(batch_size))
        assert {batch.group_ids.shape for batch in batches} == {(batch_size, 4)}
        found = np.concatenate([batch.reference[batch.group_ids > 0] for batch in batches])
        assert sorted(found) == [-5, -4, -3, -2, -1, 0]


def test_references_of_a_set_can_be_given_once_they_are_known(make_pairs):
    one = make_pairs().with_references({"held": -np.arange(6.0)})
    for found, expected in zip(
        one.batches(2), make_pairs({"held": -np.arange(6.0)}).batches(2), strict=True
    ):
        assert_same(found, expected)


def test_hosts_share_a_set_of_answers(make_pairs):
    (whole,) = make_pairs().batches(4)
    parts = [next(make_pairs().batches(4, half)) for half in (slice(0, 1), slice(1, 4))]
    np.testing.assert_array_equal(np.concatenate([part.values for part in parts]), whole.values)
