import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.card import flags, make_card, with_token_counts
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.ledger import Declared, Report
from jaxtrain.corpus.step import Outcome

STEPS = {"clean": Declared(("spaces", "empty", "never")), "pick": Declared(("dull",), ("score",))}


def _report(num_dull: int = 1) -> Report:
    """Ten documents of 4 bytes: one edited, two emptied, `num_dull` of eight dropped."""
    report = Report(STEPS)
    batch = [
        Document(f"d{i}", f"te{i:02d}", "web" if i < 6 else "code", {"language": "en"})
        for i in range(10)
    ]
    report.take_in(batch)
    report.pass_by("a.jsonl", "not JSON", 7, 30)
    edited = batch[0]._replace(text="te00 ")
    outcomes = [Outcome(edited, edits={"spaces": 1})]
    outcomes += [Outcome(each, "empty", "no words") for each in batch[1:3]]
    outcomes += [Outcome(each) for each in batch[3:]]
    report.record("clean", batch, outcomes)
    left = [each.document for each in outcomes if each.dropped is None]
    outcomes = [Outcome(each, "dull", "so dull") for each in left[:num_dull]]
    outcomes += [
        Outcome(each._replace(metadata={"language": "en", "score": 0.5}))
        for each in left[num_dull:]
    ]
    report.record("pick", left, outcomes)
    report.write("train", [each.document for each in outcomes if each.dropped is None])
    return report


def _card(report=None, **changes):
    given = {"config": {"steps": list(STEPS)}}, report or _report(), {}, {"train": {}}, {}
    return make_card(*given) | changes


def test_card_counts_documents_and_bytes_by_step():
    clean, pick = _card()["steps"]
    assert clean["in"] == {"documents": 10, "bytes": 40}
    assert clean["out"] == {"documents": 8, "bytes": 33}
    assert clean["bytes_added_by_edits"] == 1
    assert pick["in"] == clean["out"]
    assert pick["out"] == {"documents": 7, "bytes": 28}


def test_card_lists_every_declared_rule_in_order_with_examples():
    rules = {rule["rule"]: rule for rule in _card()["steps"][0]["rules"]}
    assert list(rules) == ["spaces", "empty", "never"]
    assert rules["empty"]["removed"] == {"documents": 2, "bytes": 8}
    assert rules["spaces"]["edited"] == {"documents": 1, "occurrences": 1}
    assert {each["id"] for each in rules["empty"]["examples"]} == {"d1", "d2"}
    assert rules["never"] == {"rule": "never", "examples": []}


def test_card_follows_sources_and_languages_through_the_steps():
    card = _card()
    web = card["sources"]["web"]
    assert web["read"] == {"documents": 6, "bytes": 24}
    assert web["steps"]["clean"]["removed"] == {"empty": 2}
    assert web["steps"]["pick"]["out"] == {"documents": 3, "bytes": 12}
    assert web["written"] == {"train": {"documents": 3, "bytes": 12}}
    assert card["sources"]["code"]["written"] == {"train": {"documents": 4, "bytes": 16}}
    assert card["languages"]["en"]["written"] == {"train": {"documents": 7, "bytes": 28}}


def test_sources_add_up_to_the_steps():
    card = _card()
    for step in card["steps"]:
        rows = [source["steps"][step["step"]] for source in card["sources"].values()]
        for side in ("in", "out"):
            for unit in ("documents", "bytes"):
                assert sum(row[side][unit] for row in rows) == step[side][unit]


@pytest.mark.parametrize(("num_dull", "is_greedy"), [(4, False), (5, True)])
def test_rule_is_greedy_above_half_of_its_input(num_dull, is_greedy):
    greedy = flags(_report(num_dull))["greedy"]
    assert greedy == ([{"step": "pick", "rule": "dull", "removed_frac": 0.625}] * is_greedy)


def test_rule_that_did_nothing_is_dead_if_it_met_documents():
    assert flags(_report())["dead"] == [{"step": "clean", "rule": "never"}]
    assert flags(Report(STEPS)) == {"dead": [], "greedy": []}


def test_card_of_a_report_that_does_not_add_up_is_refused():
    report = _report()
    report.take_in([Document("lost", "text", "web", {})])
    with pytest.raises(AssertionError, match="ledger"):
        _card(report)


@given(st.integers(1, 9))
def test_card_does_not_depend_on_how_reports_were_saved_and_added(num_parts):
    whole = _report()
    for _ in range(num_parts):
        whole += Report.from_json(json.loads(json.dumps(Report(STEPS).to_json())))
    assert json.dumps(_card(whole)) == json.dumps(_card())


def test_token_counts_of_outputs_and_tokenizers_come_together():
    card = with_token_counts(_card(), "b" * 64, {"train": {"web": 10, "code": 5}})
    card = with_token_counts(card, "b" * 64, {"heldout": {"web": 1}})
    card = with_token_counts(card, "a" * 64, {"train": {"web": 7}})
    assert card["tokens"] == {
        "a" * 64: {"train": {"total": 7, "sources": {"web": 7}}},
        "b" * 64: {
            "heldout": {"total": 1, "sources": {"web": 1}},
            "train": {"total": 15, "sources": {"code": 5, "web": 10}},
        },
    }
    assert list(card["tokens"]) == ["a" * 64, "b" * 64]
    assert card["steps"] == _card()["steps"]
