import collections
import itertools
import logging
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxtrain.data.config import DataConfig, SourceConfig
from jaxtrain.data.loader import Loader
from jaxtrain.types import AnswerBatch, Batch
from tests.data.naive_answers import assert_same, make_groups

PACKINGS = ("concat", "concat_isolated", "best_fit")


def rows(count, first=0, seq_len=2):
    """Documents that are one row each; row r begins with the token first + r."""
    return [[first + row, *[299] * (seq_len - 1)] for row in range(count)]


def first_tokens(batch):
    """The first token of each row, None for filler rows."""
    real = batch.segment_ids[:, 0] > 0
    return [int(token) if r else None for token, r in zip(batch.inputs[:, 0], real, strict=True)]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def make_loader(make_config):
    def make(sources, seed=0, **config):
        return Loader(make_config(sources, **({"seq_len": 2} | config)), seed)

    return make


# ------------------------------------------------------------------ every token once, whoever asks


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=15),
    seq_len=st.integers(1, 9),
    batch_size=st.integers(1, 7),
    num_hosts=st.integers(1, 4),
    packing=st.sampled_from(PACKINGS),
    objective=st.sampled_from(["next_token", "masked_lm"]),
)
def test_batches_of_an_epoch_hold_the_corpus_exactly_for_any_number_of_hosts(
    write_store, numbered_documents, lengths, seq_len, batch_size, num_hosts, packing, objective
):
    total = sum(lengths)
    if total < seq_len or total - sum(n > 0 for n in lengths) == 0:
        return  # refused; see the tests of errors
    path = write_store("memory://epoch/", numbered_documents(lengths), part_tokens=16)
    config = DataConfig(
        sources={"all": SourceConfig(path)},
        batch_size=batch_size,
        seq_len=seq_len,
        packing=packing,
        objective=objective,
        exhausted="stop",
    )
    loader = Loader(config, seed=5)
    cuts = [batch_size * host // num_hosts for host in range(num_hosts + 1)]
    seen = collections.Counter()
    for step in range(loader.num_steps):
        whole = loader.batch(step)
        hosts = [loader.batch(step, slice(a, b)) for a, b in itertools.pairwise(cuts)]
        assert same(whole, Batch(*(np.concatenate(arrays) for arrays in zip(*hosts, strict=True))))
        original = whole.targets if objective == "masked_lm" else whole.inputs
        seen.update(original[whole.segment_ids > 0].tolist())
    assert seen == collections.Counter(range(total))


def test_two_hosts_get_the_two_halves_of_the_global_batch(make_loader):
    """LDR-15, without processes: a unique first token for every row."""
    loader = make_loader({"a": rows(40)}, batch_size=8)
    for step in range(7):
        whole = first_tokens(loader.batch(step))
        halves = [first_tokens(loader.batch(step, half)) for half in (slice(0, 4), slice(4, 8))]
        assert halves[0] + halves[1] == whole
        assert len(set(whole)) == 8


def test_batch_is_a_function_of_config_seed_and_step_alone(make_config):
    config = make_config({"a": rows(30), "b": rows(9, first=100)}, seq_len=2, batch_size=5)
    one, other = Loader(config, seed=3), Loader(config, seed=3)
    backwards = {step: other.batch(step) for step in range(11, -1, -1)}
    assert all(same(one.batch(step), backwards[step]) for step in range(12))
    assert not same(Loader(config, seed=4).batch(0), one.batch(0))


def test_block_is_its_batches_one_after_another(make_loader):
    loader = make_loader({"a": rows(30)}, batch_size=4, batch_size_changes=((2, 6),))
    for part in (None, slice(1, 3)):
        batches = [loader.batch(step, part) for step in range(1, 4)]
        joined = Batch(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))
        assert same(loader.block(1, 4, part), joined)


def test_source_order_in_the_config_decides_nothing(make_config):
    config = make_config({"a": rows(9), "b": rows(9, 100), "c": rows(9, 200)}, seq_len=2)
    turned = DataConfig(sources=dict(reversed(config.sources.items())), seq_len=2)
    assert all(same(Loader(config, 0).batch(n), Loader(turned, 0).batch(n)) for n in range(5))


def test_batches_do_not_depend_on_where_the_store_lies(make_config, write_store):
    """LDR-14: nor does what a checkpoint keeps of them."""
    here = make_config({"a": rows(30)}, seq_len=2)
    there = make_config({"a": SourceConfig(write_store("memory://there/", rows(30)))}, seq_len=2)
    assert all(same(Loader(here, 0).batch(n), Loader(there, 0).batch(n)) for n in range(5))
    assert Loader(here, 0).metadata() == Loader(there, 0).metadata()


def test_loader_survives_pickling_without_its_tokens(make_loader):
    loader = make_loader({"a": rows(200)})
    pickled = pickle.dumps(loader)
    assert same(pickle.loads(pickled).batch(3), loader.batch(3))
    assert len(pickled) < 20_000


# ---------------------------------------------------------------------------------- order of rows


def test_each_epoch_is_another_permutation_of_all_rows(make_config):
    """LDR-12: 200 rows, three epochs, run twice."""
    config = make_config({"a": rows(200)}, seq_len=2, batch_size=8)
    loader = Loader(config, seed=1)
    order = [token for step in range(75) for token in first_tokens(loader.batch(step))]
    epochs = [order[i : i + 200] for i in (0, 200, 400)]
    assert all(sorted(epoch) == list(range(200)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != list(range(200))
    again = Loader(config, seed=1)
    assert order == [token for step in range(75) for token in first_tokens(again.batch(step))]


def test_shares_of_small_sources_are_exact_and_their_epochs_reported(make_store):
    """LDR-08: 3, 4 and 5 rows, weights 0.7, 0.2 and 0.1, 10,000 draws."""
    weights = {"a": 0.7, "b": 0.2, "c": 0.1}
    paths = {"a": make_store(rows(3)), "b": make_store(rows(4, 100)), "c": make_store(rows(5, 200))}
    sources = {name: SourceConfig(paths[name], weights[name]) for name in paths}
    loader = Loader(DataConfig(sources=sources, seq_len=2, batch_size=100), seed=0)
    counts = collections.Counter()
    for step in range(100):
        counts.update(token // 100 for token in first_tokens(loader.batch(step)))
    assert counts == {0: 7000, 1: 2000, 2: 1000}
    report = loader.report(100)
    assert [round(source.epochs, 1) for source in report.sources] == [2333.3, 500, 200]
    for text in ("2333.3 epochs", "500.0 epochs", "200.0 epochs", "exhausted=repeat"):
        assert text in str(report)


def test_weights_change_at_their_step(make_config):
    config = make_config({"a": rows(8), "b": rows(8, first=100)}, seq_len=2, batch_size=4)
    paths = {name: source.path for name, source in config.sources.items()}
    sources = {
        "a": SourceConfig(paths["a"], 1.0, ((3, 0.0), (6, 3.0))),
        "b": SourceConfig(paths["b"], 0.0, ((3, 1.0),)),
    }
    loader = Loader(DataConfig(sources=sources, seq_len=2, batch_size=4), seed=0)
    taken = [sum(token < 100 for token in first_tokens(loader.batch(n))) for n in range(9)]
    assert taken == [4, 4, 4, 0, 0, 0, 3, 3, 3]


def test_editing_the_future_of_schedules_leaves_past_batches_unchanged(make_config):
    config = make_config({"a": rows(50), "b": rows(50, first=100)}, seq_len=2, batch_size=4)
    paths = {name: source.path for name, source in config.sources.items()}
    edited = DataConfig(
        sources={
            "a": SourceConfig(paths["a"], 1.0, ((5, 9.0), (8, 0.0))),
            "b": SourceConfig(paths["b"], 1.0),
        },
        seq_len=2,
        batch_size=4,
        batch_size_changes=((5, 7),),
    )
    before, after = Loader(config, 0), Loader(edited, 0)
    assert all(same(before.batch(n), after.batch(n)) for n in range(5))
    assert not same(before.batch(5), after.batch(5))
    assert config.until(5) == edited.until(5)


def test_source_added_later_leaves_past_batches_unchanged(make_config, make_store):
    """Eight sources, as NumPy adds up that many in another order; the new one comes second."""
    names = "acdefghi"
    paths = {name: make_store(rows(9, 20 * i)) for i, name in enumerate(names)}
    sources = {name: SourceConfig(paths[name], 0.1 * (i + 1)) for i, name in enumerate(names)}
    new = SourceConfig(make_store(rows(9, first=250)), 0.0, ((3, 0.0), (5, 2.0), (8, 0.0)))
    config = make_config(sources, seq_len=2, batch_size=5)
    more = replace(config, sources={**sources, "b": new})
    before, after = Loader(config, 0), Loader(more, 0)
    assert all(same(before.batch(n), after.batch(n)) for n in range(5))
    assert not same(before.batch(5), after.batch(5))
    assert config.until(5) == more.until(5)
    assert config.until(6) != more.until(6)


def test_batch_size_ramp_takes_every_row_once(make_loader):
    loader = make_loader({"a": rows(36)}, batch_size=2, batch_size_changes=((3, 4), (6, 6)))
    assert loader.batch_size_steps(7) == [0, 3, 6]
    assert loader.batch_size_steps(6) == [0, 3]
    assert [loader.batch_size(n) for n in (0, 2, 3, 5, 6)] == [2, 2, 4, 4, 6]
    taken = [token for n in range(9) for token in first_tokens(loader.batch(n))]
    assert sorted(taken) == list(range(36))


# -------------------------------------------------------------------------- sources without repeat


@pytest.mark.parametrize("names", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_empty_source_neither_loses_nor_repeats_rows(make_loader, caplog, names):
    """LDR-07: equal weights, every order of the three sources."""
    contents = [[], rows(3, first=3), rows(1, first=20)]
    with caplog.at_level(logging.WARNING):
        loader = make_loader(
            dict(zip(names, contents, strict=True)), exhausted="stop", batch_size=2
        )
    taken = [token for n in range(loader.num_steps) for token in first_tokens(loader.batch(n))]
    assert sorted(taken) == [3, 4, 5, 20]
    assert f"config.data.sources.{names[0]} has no tokens" in caplog.text
    assert "exhausted=stop: each source is read once" in str(loader.report(2))


def test_rows_that_do_not_fill_the_last_batch_come_with_filler_rows(make_loader):
    """LDR-11: no row is dropped."""
    loader = make_loader({"a": rows(13)}, exhausted="stop", batch_size=8)
    assert loader.num_steps == 2
    last = loader.batch(1)
    assert [token is None for token in first_tokens(last)] == [False] * 5 + [True] * 3
    assert not last.segment_ids[5:].any()
    assert not last.loss_weights[5:].any()
    assert (np.count_nonzero(last.segment_ids), last.inputs.size) == (10, 16)
    taken = first_tokens(loader.batch(0)) + first_tokens(last)[:5]
    assert sorted(taken) == list(range(13))
    assert "3 rows of the last batch are filler" in str(loader.report(2))


def test_host_whose_rows_are_all_filler_gets_filler(make_loader):
    loader = make_loader({"a": rows(9)}, exhausted="stop", batch_size=8)
    batch = loader.batch(1, slice(4, 8))
    assert batch.inputs.shape == (4, 2)
    assert not batch.segment_ids.any()


def test_more_steps_than_the_sources_give_is_an_error(make_loader):
    loader = make_loader({"a": rows(13)}, exhausted="stop", batch_size=8)
    message = r"config\.loop\.num_steps=3 must be at most 2: config\.data\.exhausted='stop'"
    for attempt in (
        loader.check_num_steps,
        lambda n: loader.batch(n - 1),
        lambda n: loader.iterate(0, n),
    ):
        with pytest.raises(ValueError, match=message):
            attempt(3)
    loader.check_num_steps(2)
    assert make_loader({"a": rows(13)}, batch_size=8).num_steps is None


# ----------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_longer_than_all_tokens_are_an_error(make_loader, packing):
    with pytest.raises(
        ValueError, match=r"config\.data\.seq_len=5 must be at most 4, all tokens of"
    ):
        make_loader({"web": [[1, 2, 3], [4]]}, seq_len=5, packing=packing)


@pytest.mark.parametrize("packing", ["concat_isolated", "best_fit"])
def test_documents_without_a_target_are_an_error(make_loader, packing):
    with pytest.raises(ValueError, match=r"config\.data\.sources\.web has no token to predict"):
        make_loader({"web": [[1], [2], [3]]}, packing=packing)
    assert make_loader({"web": [[1], [2], [3]]}, packing="concat").batch(0).loss_weights.any()


def test_step_at_which_no_source_has_a_weight_is_an_error(make_config, make_store):
    sources = {
        "a": SourceConfig(make_store(rows(4)), 1.0, ((7, 0.0),)),
        "b": SourceConfig(make_store([])),
    }
    with pytest.raises(ValueError, match="no source with tokens has a weight at step 7"):
        Loader(make_config(sources, seq_len=2), 0)


def test_masked_lm_needs_a_mask_token(make_config, make_store, tokenization):
    bare = make_store(rows(4), tokenization=replace(tokenization, special_ids={}))
    config = make_config({"a": SourceConfig(bare)}, seq_len=2, objective="masked_lm")
    with pytest.raises(ValueError, match=r"sources\.a\.path=.* has no mask token"):
        Loader(config, 0)


# -------------------------------------------------------------------------------- masked LM, trace


def test_masked_lm_hides_tokens_of_the_same_rows(make_config):
    documents = [np.random.default_rng(i).integers(0, 250, 50).tolist() for i in range(40)]
    config = make_config({"a": documents}, seq_len=32, batch_size=8, packing="best_fit")
    masked = DataConfig(
        sources=config.sources, seq_len=32, batch_size=8, packing="best_fit", objective="masked_lm"
    )
    plain, hidden = Loader(config, 0).batch(2), Loader(masked, 0).batch(2)
    assert np.array_equal(hidden.targets, plain.inputs)
    assert np.array_equal(hidden.segment_ids, plain.segment_ids)
    changed = hidden.inputs != plain.inputs
    assert changed.any()
    assert hidden.loss_weights[changed].all()
    assert not hidden.loss_weights[plain.segment_ids == 0].any()
    assert not same(Loader(masked, 1).batch(2), hidden)


@pytest.mark.parametrize("packing", PACKINGS)
def test_trace_leads_from_each_position_to_its_document(make_loader, numbered_documents, packing):
    lengths = {"a": [5, 1, 9, 0, 3, 12], "b": [4, 4, 7]}
    documents = {name: numbered_documents(each) for name, each in lengths.items()}
    loader = make_loader(documents, seq_len=6, batch_size=4, packing=packing, seed=2)
    for step in range(6):
        batch = loader.batch(step)
        traces = loader.trace(step)
        assert [trace.row for trace in traces] == list(range(4 * step, 4 * step + 4))
        for row, trace in enumerate(traces):
            covered = 0
            for segment in trace.segments:
                assert segment.column == covered
                covered += segment.length
                here = slice(segment.column, segment.column + segment.length)
                document = documents[trace.source][segment.document]
                begin = segment.document_offset
                assert batch.inputs[row, here].tolist() == document[begin : begin + segment.length]
                assert set(batch.segment_ids[row, here]) == {segment.segment_id}
                assert segment.document_id == f"doc-{segment.document}"
                assert segment.source == f"file.jsonl:{segment.document}"
            assert covered == (batch.segment_ids[row] > 0).sum()
    assert loader.trace(3, slice(1, 3)) == loader.trace(3)[1:3]


def test_trace_tells_the_epoch_and_leaves_filler_rows_out(make_loader):
    loader = make_loader({"a": rows(6)}, batch_size=4)
    assert [trace.epoch for n in range(3) for trace in loader.trace(n)] == [0] * 6 + [1] * 6
    once = make_loader({"a": rows(6)}, batch_size=4, exhausted="stop")
    assert [trace.row for trace in once.trace(1)] == [4, 5]


def test_description_of_a_batch_is_one_line_that_names_its_first_documents(make_loader):
    loader = make_loader({"a": [[1, 2], [3], [4, 5], [6]], "b": [[7, 8]]}, batch_size=4)
    text = loader.describe(1)
    assert re.fullmatch("rows 4 to 7 begin with " + "; ".join([r"[ab] '.*?' at '.*?'"] * 3), text)
    named = [
        f"{trace.source} {segment.document_id!r} at {segment.source!r}"
        for trace in loader.trace(1)
        for segment in trace.segments
    ]
    assert text.endswith("; ".join(named[:3]))
    assert loader.describe(1, limit=1).endswith(f"begin with {named[0]}")
    assert re.search(r"b 'doc-0' at 'file\.jsonl:0'", loader.describe(1, limit=99))


def test_report_says_of_a_large_store_that_it_was_not_verified(make_loader, monkeypatch):
    assert "not verified" not in str(make_loader({"a": rows(6)}).report(1))
    monkeypatch.setattr("jaxtrain.data.store.VERIFIED_BYTES", 0)
    assert "not verified" in str(make_loader({"a": rows(6)}).report(1))


def test_metadata_follows_the_content_of_each_source(make_loader):
    """LDR-13: other data is other metadata."""
    one = make_loader({"a": rows(6), "b": rows(5)}).metadata()
    other = make_loader({"a": rows(6), "b": rows(5, first=1)}).metadata()
    assert one["a"] == other["a"]
    assert one["b"]["fingerprint"] != other["b"]["fingerprint"]
    assert one["b"]["num_tokens"] == 10


# ----------------------------------------------------------------------------------------- answers


@pytest.fixture
def make_answers(write_answers, tmp_path):
    def make(lengths=((3, 4), (2, 2), (5, 3), (9, 9), (2, 6)), references=None, **settings):
        """Pairs whose chosen answer n has the value n + 0.25."""
        path = write_answers(tmp_path / "pairs", "pairs", make_groups("pairs", lengths))
        given = {"seq_len": 18, "packing": "best_fit", "batch_size": 2}
        return Loader(DataConfig({"a": SourceConfig(path)}, **(given | settings)), 0, references)

    return make


def test_loader_says_what_it_serves(make_answers, make_loader):
    assert make_answers().answers == "pairs"
    assert make_loader({"a": rows(4)}).answers is None


def test_values_and_references_follow_their_documents_through_epochs(make_answers):
    """Rows are shuffled anew in each; documents are named by the trace."""
    loader = make_answers(references={"a": -np.arange(10.0)}, batch_size=1)
    orders, num_rows = set(), loader.sources[0].num_rows
    for epoch in range(6):
        order = []
        for step in range(epoch * num_rows, (epoch + 1) * num_rows):
            batch, (trace,) = loader.batch(step), loader.trace(step)
            for q, segment in enumerate(trace.segments):
                number = segment.document
                assert batch.reference[0, q] == -number
                assert batch.values[0, q] == (0 if number % 2 else number + 0.25)
                order.append(number)
        assert sorted(order) == list(range(10))
        orders.add(tuple(order))
    assert len(orders) > 1


def test_worker_processes_bring_the_same_answers(make_answers, monkeypatch):
    """With what lies beside their tokens."""
    monkeypatch.setattr("jaxtrain.data.pipeline._BLOCK_POSITIONS", 1)
    loader = make_answers(references={"a": -np.arange(10.0)}, num_workers=1)
    batches = list(loader.iterate(0, 4))
    assert len(batches) == 4
    for step, batch in enumerate(batches):
        assert_same(batch, loader.batch(step))
        assert type(batch) is AnswerBatch
        assert type(batch.tokens) is Batch


def test_metadata_of_answers_says_their_kind(make_answers, make_loader):
    (entry,) = make_answers().metadata().values()
    assert (entry["answers"], entry["num_groups"], entry["num_documents"]) == ("pairs", 5, 10)
    assert "answers" not in make_loader({"a": rows(4)}).metadata()["a"]


def test_report_counts_answers_and_groups(make_answers):
    text = str(make_answers().report(2))
    assert "10 answers in 5 groups of kind 'pairs', none cut, at most" in text


def test_a_pickled_loader_keeps_its_references(make_answers):
    loader = make_answers(references={"a": -np.arange(10.0)})
    assert_same(pickle.loads(pickle.dumps(loader)).batch(1), loader.batch(1))
