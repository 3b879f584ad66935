import json

import pytest

from jaxtrain import config, files
from jaxtrain.corpus.card import make_card
from jaxtrain.corpus.diff import NOT_READ, Move, compare, report
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.fates import Fates, text_hash
from jaxtrain.corpus.layout import Layout
from jaxtrain.corpus.ledger import Declared, Report
from jaxtrain.corpus.step import Outcome
from tests import corpora

TEXTS = {"d0": "a", "d1": "bb", "d2": "ccc", "d3": "dddd"}


def _run(workdir, min_length, texts=None, upper=(), heldout=()):
    """What a run leaves whose one step drops texts below a length."""
    texts = TEXTS if texts is None else texts
    documents = [Document(name, text, "web", {}) for name, text in texts.items()]
    counts, fates = Report({"length": Declared(("too short", "too long"))}), Fates(documents)
    counts.take_in(documents)
    outcomes = [
        Outcome(each, "too short", f"{len(each.text)} < {min_length}")
        if len(each.text) < min_length
        else Outcome(each._replace(text=each.text.upper()) if each.id in upper else each)
        for each in documents
    ]
    counts.record("length", documents, outcomes)
    fates.record("length", outcomes)
    left = [each.document for each in outcomes if each.dropped is None]
    outputs = ["heldout" if each.id in heldout else "train" for each in left]
    for output, document in zip(outputs, left, strict=True):
        counts.write(output, [document])
    fates.write(outputs, left)
    layout = Layout(workdir)
    layout.fates(0).parent.mkdir(parents=True)
    fates.save(layout.fates(0))
    made_from = {"config": {"length": {"min": min_length}}}
    files.write_json(layout.card, make_card(made_from, counts, {}, {}, {}))
    return workdir


def _only(workdir, fate):
    """A run over one document that has the fate, of (output, text) or (rule, None)."""
    rule_or_output, text = fate
    documents = [Document("d", "text", "web", {})]
    counts, fates = Report({"length": Declared(None)}), Fates(documents)
    counts.take_in(documents)
    if text is None:
        outcomes = [Outcome(documents[0], rule_or_output)]
    else:
        outcomes = [Outcome(documents[0]._replace(text=text))]
    counts.record("length", documents, outcomes)
    fates.record("length", outcomes)
    if text is not None:
        counts.write(rule_or_output, [outcomes[0].document])
        fates.write([rule_or_output], [outcomes[0].document])
    layout = Layout(workdir)
    layout.fates(0).parent.mkdir(parents=True)
    fates.save(layout.fates(0))
    files.write_json(layout.card, make_card({}, counts, {}, {}, {}))
    return workdir


def _compare(a, b):
    moved = []
    return compare(a, b, config.differences, moved.append), moved


def test_stricter_rule_is_named_with_what_it_removed_and_whom(tmp_path):
    a, b = _run(tmp_path / "a", 2), _run(tmp_path / "b", 4)
    difference, moved = _compare(a, b)
    assert difference["made_from"] == ["made_from.config.length.min: 2 -> 4"]
    assert difference["rules"] == [{"step": "length", "rule": "too short", "a": 1, "b": 3}]
    counts = {kind: count for kind, count in difference["documents"].items() if count}
    assert counts == {"the same in both": 2, "kept in A, removed in B": 2}
    (move,) = difference["moves"]
    assert (move["was"], move["now"], move["documents"]) == ("train", "length: too short", 2)
    assert {each.id_a for each in moved} == {"d1", "d2"} == {e["id_b"] for e in move["examples"]}


def test_comparison_the_other_way_round_is_its_mirror(tmp_path):
    a, b = _run(tmp_path / "a", 2), _run(tmp_path / "b", 4)
    (there,), (back,) = _compare(a, b)[0]["moves"], _compare(b, a)[0]["moves"]
    assert (there["was"], there["now"]) == (back["now"], back["was"])
    assert there["documents"] == back["documents"]


def test_run_does_not_differ_from_itself(tmp_path):
    a = _run(tmp_path / "a", 2)
    difference, moved = _compare(a, a)
    assert not moved
    assert difference["made_from"] == difference["moves"] == []
    assert difference["documents"]["the same in both"] == 4


def test_changed_text_is_told_though_both_keep_the_document(tmp_path):
    a, b = _run(tmp_path / "a", 2), _run(tmp_path / "b", 2, upper=("d3",))
    _, moved = _compare(a, b)
    assert moved == [Move(text_hash("dddd").hex(), "d3", "d3", "train", "train", True)]


def test_document_that_goes_to_another_output_has_moved(tmp_path):
    a, b = _run(tmp_path / "a", 2), _run(tmp_path / "b", 2, heldout=("d1",))
    _, moved = _compare(a, b)
    assert moved == [Move(text_hash("bb").hex(), "d1", "d1", "train", "heldout", False)]


def test_documents_are_known_by_text_where_ids_differ(tmp_path):
    renamed = {f"other-{name}": text for name, text in TEXTS.items()}
    a, b = _run(tmp_path / "a", 2), _run(tmp_path / "b", 4, renamed)
    _, moved = _compare(a, b)
    assert {(each.id_a, each.id_b) for each in moved} == {("d1", "other-d1"), ("d2", "other-d2")}


def test_documents_that_one_run_did_not_read_are_told(tmp_path):
    a, b = _run(tmp_path / "a", 2), _run(tmp_path / "b", 2, dict(TEXTS, new="eeeee"))
    difference, moved = _compare(a, b)
    assert moved == [Move(text_hash("eeeee").hex(), None, "new", NOT_READ, "train", False)]
    assert difference["documents"]["only in B"] == 1


@pytest.mark.parametrize(
    ("was", "now", "kind"),
    [
        (("train", "x"), ("train", "x"), "the same in both"),
        (("short", None), ("short", None), "the same in both"),
        (("train", "x"), ("short", None), "kept in A, removed in B"),
        (("short", None), ("train", "x"), "removed in A, kept in B"),
        (("short", None), ("dull", None), "removed in both, by other rules"),
        (("train", "x"), ("heldout", "x"), "written to another output"),
        (("train", "x"), ("heldout", "y"), "written to another output"),
        (("train", "x"), ("train", "y"), "written with another text"),
    ],
)
def test_document_is_of_one_kind(tmp_path, was, now, kind):
    difference, moved = _compare(_only(tmp_path / "a", was), _only(tmp_path / "b", now))
    counts = {each: count for each, count in difference["documents"].items() if count}
    assert counts == {kind: 1}
    assert len(moved) == (kind != "the same in both")


def test_report_names_settings_rules_and_documents(tmp_path):
    a, b = _run(tmp_path / "a", 2), _run(tmp_path / "b", 4, upper=("d3",))
    text = report(_compare(a, b)[0])
    for expected in (
        "made_from.config.length.min: 2 -> 4",
        "length: too short",
        "+2",
        "2 · train → length: too short",
        "1 · train, with another text",
        "  d3",
    ):
        assert expected in text


def test_comparison_is_json(tmp_path):
    difference, _ = _compare(_run(tmp_path / "a", 2), _run(tmp_path / "b", 4))
    assert json.loads(json.dumps(difference)) == difference


def test_directory_without_a_whole_corpus_is_refused(tmp_path):
    a = _run(tmp_path / "a", 2)
    with pytest.raises(ValueError, match=r"nowhere holds no whole corpus \(card.json is missing\)"):
        _compare(a, tmp_path / "nowhere")


def test_lost_fates_are_noticed(tmp_path):
    a = _run(tmp_path / "a", 2)
    Layout(a).fates(0).unlink()
    with pytest.raises(ValueError, match="tells of 0 documents, but 4 were read"):
        _compare(a, a)


def test_comparison_of_two_runs_agrees_with_what_they_wrote(tmp_path):
    texts = corpora.texts(60)
    records = [{"id": f"d{i}", "text": text} for i, text in enumerate(texts + texts[:20])]
    source = corpora.write_lines(tmp_path / "in.jsonl", records)
    kept = []
    for name, min_words in (("a", 15), ("b", 30)):
        values = {"gopher_quality__min_words": min_words, "gopher_quality__min_stop_words": None}
        steps = ("gopher_quality", "drop_exact_duplicates")
        run = corpora.make_config([source], steps=steps, chunk_bytes=3_000, **values)
        corpora.prepare(run, tmp_path / name)
        outputs = ("train", "heldout")
        kept.append({d.id for out in outputs for d in corpora.documents(tmp_path / name, out)})
    difference, moved = _compare(tmp_path / "a", tmp_path / "b")
    lost = {each.id_a for each in moved if each.was in outputs and each.now not in outputs}
    found = {each.id_b for each in moved if each.was not in outputs and each.now in outputs}
    assert lost == kept[0] - kept[1] != set()
    assert found == kept[1] - kept[0]
    assert difference["documents"]["kept in A, removed in B"] == len(lost)
    assert sum(difference["documents"].values()) == 80
