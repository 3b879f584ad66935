from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.data.config import BatchSchedule, DataConfig, SourceConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"seq_len": 0}, "seq_len=0 must be at least 1"),
        ({"num_workers": -1}, "num_workers=-1 must be at least 0"),
        ({"prefetch": -1}, "prefetch=-1 must be at least 0"),
        ({"num_workers": 1, "prefetch": 0}, "prefetch=0 makes num_workers useless"),
        ({"packing": "greedy"}, "packing='greedy' must be one of concat, concat_isolated"),
        ({"objective": "span"}, "objective='span' must be one of next_token, masked_lm"),
        ({"exhausted": "no"}, "exhausted='no' must be one of repeat, stop"),
        ({"mask_frac": 0.0}, "mask_frac=0.0 must be between 0 and 1"),
        ({"batch_size_changes": ((5, 0),)}, "batch size 0; it must be at least 1"),
        ({"batch_size_changes": ((5, 8), (5, 9))}, "batch_size_changes has steps"),
        ({"batch_size_changes": ((0, 8),)}, "batch_size_changes has steps"),
        ({"sources": {"": SourceConfig("a")}}, "sources has a source named ''"),
        ({"eval_sources": {"a/b": SourceConfig("a")}}, "eval_sources has a source named 'a/b'"),
        ({"eval_sources": {"a b": SourceConfig("a")}}, "eval_sources has a source named 'a b'"),
    ],
)
def test_value_that_makes_no_sense_is_an_error_that_begins_with_the_field(fields, message):
    with pytest.raises(ValueError, match=message) as error:
        DataConfig(**fields)
    assert str(error.value).split("=")[0].split(" ")[0] in fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight": -1.0}, "weight=-1.0 must be from 0 to 1e9"),
        ({"weight": float("nan")}, "weight=nan"),
        ({"weight_changes": ((3, float("inf")),)}, "weight=inf"),
        ({"weight_changes": ((5, 1.0), (3, 2.0))}, r"weight_changes has steps \[5, 3\]"),
    ],
)
def test_source_that_makes_no_sense_is_an_error(fields, message):
    with pytest.raises(ValueError, match=message):
        SourceConfig("path", **fields)


def test_weight_holds_from_its_step_on():
    source = SourceConfig("path", 1.0, ((10, 2.0), (20, 0.0)))
    weights = [source.weight_at(step) for step in (0, 9, 10, 19, 20, 1000)]
    assert weights == [1.0, 1.0, 2.0, 2.0, 0.0, 0.0]


@given(
    st.integers(1, 9),
    st.dictionaries(st.integers(1, 30), st.integers(1, 9), max_size=4),
)
def test_batch_schedule_numbers_the_rows_of_all_batches_through(size, changes):
    schedule = BatchSchedule(((0, size), *sorted(changes.items())))
    row = 0
    for step in range(40):
        size = changes.get(step, size)
        assert schedule.size(step) == size
        assert schedule.first_row(step) == row
        assert {schedule.step_of_row(r) for r in range(row, row + size)} == {step}
        row += size


def test_positions_per_step_follow_the_batch_size():
    config = DataConfig(batch_size=4, batch_size_changes=((10, 8),), seq_len=16)
    assert config.positions_per_step() == ((0, 64), (10, 128))


CONFIG = DataConfig(
    sources={"a": SourceConfig("here", 1.0, ((10, 2.0),)), "b": SourceConfig("b", 1.0)},
    batch_size_changes=((10, 16),),
)


def with_source(**fields):
    return replace(CONFIG, sources={**CONFIG.sources, "a": replace(CONFIG.sources["a"], **fields)})


@pytest.mark.parametrize(
    "other",
    [
        with_source(path="elsewhere"),
        with_source(weight_changes=((10, 9.0), (20, 1.0))),
        replace(CONFIG, batch_size_changes=((12, 4),)),
        replace(CONFIG, num_workers=3, prefetch=9),
        replace(CONFIG, eval_sources={"e": SourceConfig("e")}),
        replace(CONFIG, sources={**CONFIG.sources, "new": SourceConfig("n", 0.0, ((10, 1.0),))}),
    ],
    ids=["path", "weights later", "batch size later", "workers", "held-out", "source later"],
)
def test_what_decides_the_past_is_equal_after_edits_of_the_future(other):
    assert other.until(10) == CONFIG.until(10)
    assert other != CONFIG


@pytest.mark.parametrize(
    "other",
    [
        with_source(weight=3.0),
        with_source(weight_changes=((9, 2.0),)),
        replace(CONFIG, batch_size=9),
        replace(CONFIG, batch_size_changes=((9, 16),)),
        replace(CONFIG, seq_len=64),
        replace(CONFIG, packing="best_fit"),
        replace(CONFIG, sources={"a": CONFIG.sources["a"]}),
    ],
)
def test_what_decides_the_past_differs_after_edits_of_the_past(other):
    assert other.until(10) != CONFIG.until(10)
