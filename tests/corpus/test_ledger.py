import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.amounts import Amount, Edited, PassedBy, Places
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.ledger import Declared, Report
from jaxtrain.corpus.step import Outcome

STEPS = {
    "clean": Declared(("spaces", "empty"), ("score",)),
    "users:own": Declared(None),  # a user's function that lists no rules
}

# text, source, language, what happens to it
_documents = st.lists(
    st.tuples(
        st.text("aé字", min_size=1, max_size=6),
        st.sampled_from(["web", "code"]),
        st.sampled_from(["en", "zh", None]),
        st.sampled_from(["kept", "edited", "dropped first", "dropped last"]),
    ),
    max_size=20,
).map(
    lambda rows: [
        (Document(str(i), text, source, {"language": language, "fate": fate}), fate)
        for i, (text, source, language, fate) in enumerate(rows)
    ]
)


def _run(documents) -> Report:
    """A report over two steps and an output, as the runner keeps it."""
    report = Report(STEPS, fields=("language",))
    batch = [document for document, _ in documents]
    report.take_in(batch)
    for step, judge in (("clean", _clean), ("users:own", _own)):
        outcomes = [judge(document) for document in batch]
        report.record(step, batch, outcomes)
        batch = [each.document for each in outcomes if each.dropped is None]
    report.write("train", batch)
    return report


def _clean(document):
    scored = document._replace(metadata=dict(document.metadata, score=0.7))
    fate = document.metadata["fate"]
    if fate == "dropped first":
        return Outcome(document, "empty", "no words")
    if fate == "edited":
        return Outcome(scored._replace(text=scored.text + "é"), edits={"spaces": 2})
    return Outcome(scored)


def _own(document):
    if document.metadata["fate"] == "dropped last":
        return Outcome(document, "dull", "so dull")
    return Outcome(document)


@given(_documents)
def test_report_adds_up_and_agrees_with_a_count_by_hand(documents):
    report = _run(documents)
    report.check()
    fates = Counter(fate for _, fate in documents)
    clean = [flow for flow in report.flows["clean"].values()]
    size = {
        fate: sum(len(document.text.encode()) for document, each in documents if each == fate)
        for fate in ("kept", "edited", "dropped first", "dropped last")
    }
    assert sum((flow.taken for flow in clean), start=Amount()) == Amount(
        len(documents), sum(size.values())
    )
    assert sum((flow.dropped["empty"] for flow in clean), start=Amount()) == Amount(
        fates["dropped first"], size["dropped first"]
    )
    assert sum((flow.edits["spaces"] for flow in clean), start=Edited()) == Edited(
        fates["edited"], 2 * fates["edited"]
    )
    assert sum(flow.grown_bytes for flow in clean) == 2 * fates["edited"]
    assert sum(report.written.values(), start=Amount()) == Amount(
        fates["kept"] + fates["edited"], size["kept"] + size["edited"] + 2 * fates["edited"]
    )


@given(_documents, st.integers(0, 20), st.randoms())
def test_report_depends_neither_on_order_nor_on_chunks(documents, cut, random):
    shuffled = random.sample(documents, len(documents))
    both = _run(shuffled[:cut]) + _run(shuffled[cut:])
    both.check()
    assert json.dumps(both.to_json()) == json.dumps(_run(documents).to_json())


@given(_documents)
def test_report_comes_back_from_json(documents):
    report = _run(documents)
    report.pass_by("a.jsonl", "not JSON", 17, 40)
    written = json.dumps(report.to_json())
    assert json.dumps(Report.from_json(json.loads(written)).to_json()) == written


def test_adding_leaves_what_was_added_as_it_is():
    one, two = _run([]), _run([(Document("a", "text", "web", {"fate": "kept"}), "kept")])
    before = json.dumps(two.to_json())
    one += two
    one += two
    assert json.dumps(two.to_json()) == before
    assert one.read["web"] == Amount(2, 8)


def test_passes_that_count_apart_add_up_to_the_run():
    documents = [Document(str(i), "text", "web", {}) for i in range(4)]
    first, second = Report(STEPS), Report(STEPS)
    first.take_in(documents)
    first.record("clean", documents, [Outcome(each) for each in documents])
    outcomes = [Outcome(each) for each in documents[:3]] + [Outcome(documents[3], "dull", "")]
    second.record("users:own", documents, outcomes)
    second.write("train", documents[:2])
    second.write("heldout", documents[2:3])
    (first + second).check()


def _lose_at_the_reader(report, documents):
    report.take_in(documents)
    report.record("clean", documents[1:], [Outcome(each) for each in documents[1:]])


def _lose_between_steps(report, documents):
    report.take_in(documents)
    report.record("clean", documents, [Outcome(each) for each in documents])
    report.record("users:own", documents[1:], [Outcome(each) for each in documents[1:]])


def _lose_at_the_writer(report, documents):
    report.take_in(documents)
    for step in STEPS:
        report.record(step, documents, [Outcome(each) for each in documents])
    report.write("train", documents[1:])


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        (_lose_at_the_reader, r"clean took .*documents=1, bytes=4.*read left .*documents=2"),
        (_lose_between_steps, r"users:own took .*documents=1, .*clean left .*documents=2"),
        (_lose_at_the_writer, r"written .*documents=1, .*users:own left .*documents=2"),
    ],
)
def test_document_lost_without_a_word_is_found(lose, message):
    report = Report(STEPS)
    lose(report, [Document(str(i), "text", "web", {}) for i in range(2)])
    with pytest.raises(AssertionError, match=message):
        report.check()


def test_text_that_changes_between_two_steps_is_found():
    report = Report(STEPS)
    document = Document("d", "text", "web", {})
    report.take_in([document])
    report.record("clean", [document], [Outcome(document)])
    other = document._replace(text="text!")
    report.record("users:own", [other], [Outcome(other)])
    with pytest.raises(AssertionError, match=r"users:own took .*bytes=5.*clean left .*bytes=4"):
        report.check()


def test_languages_are_those_that_the_step_found():
    report = Report({"detect": Declared(("not kept",), ("language",))})
    batch = [Document(str(i), "text", "web", {}) for i in range(2)]
    named = [
        each._replace(metadata={"language": code})
        for each, code in zip(batch, ["en", "xx"], strict=True)
    ]
    report.record("detect", batch, [Outcome(named[0]), Outcome(named[1], "not kept", "xx")])
    assert report.flows["detect"]["web", "en"].kept == Amount(1, 4)
    assert report.flows["detect"]["web", "xx"].dropped == {"not kept": Amount(1, 4)}
    assert report.distributions["removed", "language"].values == {"xx": 1}


def test_input_passed_by_is_counted_by_reason_and_file_with_its_first_places():
    report = Report(STEPS)
    for offset in (90, 10, 50, 30, 70, 20):
        report.pass_by("a.jsonl", "not JSON", offset, 5)
    report.pass_by("b.jsonl", "not UTF-8", 0, 9)
    assert report.passed_by == {
        "not JSON": PassedBy(
            Amount(6, 30), {"a.jsonl": Places(Amount(6, 30), (10, 20, 30, 50, 70))}
        ),
        "not UTF-8": PassedBy(Amount(1, 9), {"b.jsonl": Places(Amount(1, 9), (0,))}),
    }


def test_edit_that_happened_no_time_is_none():
    report = Report(STEPS)
    document = Document("d", "text", "web", {})
    report.record("clean", [document], [Outcome(document, edits={"spaces": 0})])
    assert not report.flows["clean"]["web", ""].edits
    assert not report.examples


_document = Document("d", "text", "web", {})


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [
        ([], "step clean returned 0 outcomes for 1 documents"),
        ([Outcome(_document, "spacse", "")], "step clean reports the rule 'spacse', but declares"),
        ([Outcome(_document, edits={"tabs": 1})], "step clean reports the rule 'tabs'"),
        ([Outcome(_document._replace(id="e"))], r"step clean made \('e', source 'web'\) of"),
        ([Outcome(_document._replace(source="x"))], r"step clean made \('d', source 'x'\) of"),
        ([Outcome(_document._replace(text=""))], "step clean left no text of document 'd'"),
        ([Outcome(_document._replace(text="a\ud800"))], "step clean .*'d'.* lone surrogate"),
    ],
)
def test_outcome_that_no_step_may_give_is_refused(outcomes, message):
    with pytest.raises(ValueError, match=message):
        Report(STEPS).record("clean", [_document], outcomes)


def test_reports_of_other_steps_do_not_add():
    with pytest.raises(AssertionError, match="reports of other steps"):
        Report(STEPS) + Report({})


def test_examples_of_a_private_step_do_not_show_the_text_as_it_came():
    report = Report({"mask": Declared(("email", "too much"), private=True)})
    batch = [Document(str(i), f"mail me{i}@x.org", "web", {}) for i in range(2)]
    masked = batch[0]._replace(text="mail <EMAIL>")
    outcomes = [Outcome(masked, edits={"email": 1}), Outcome(batch[1], "too much", "9 finds > 5")]
    report.record("mask", batch, outcomes)
    assert "x.org" not in json.dumps(report.to_json())
    (edited,), (removed,) = report.examples["mask", "email"], report.examples["mask", "too much"]
    assert edited.changed_to == "mail <EMAIL>"
    assert removed.because == "9 finds > 5"


@pytest.mark.parametrize("value", [None, ["en"], {"code": "en"}, 3])
def test_language_that_is_no_name_is_unknown(value):
    report = Report(STEPS, fields=("language",))
    document = Document("d", "text", "web", {"language": value})
    report.take_in([document])
    report.record("clean", [document], [Outcome(document)])
    assert list(report.flows["clean"]) == [("web", "")]
