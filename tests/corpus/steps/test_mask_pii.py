import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.steps.mask_pii import Config, make
from tests import corpora

PIECES = ("a@b.com", " ", "8.8.8.8", "(202) 555-0143", "text", "4111111111111111", "<EMAIL>", "12")


def _documents(texts):
    return [Document(f"d{i}", text, "web", {"n": i}) for i, text in enumerate(texts)]


def _step(**options):
    return make(Config(**options), None)


def test_finds_become_placeholders_and_count_as_edits_by_kind():
    document = Document("d", "a@b.com or c@d.org or 8.8.8.8", "web", {"n": 1})
    (outcome,) = _step()([document])
    assert outcome.document == document._replace(text="<EMAIL> or <EMAIL> or <IP_ADDRESS>")
    assert outcome.dropped is None
    assert outcome.edits == {"email": 2, "ip address": 1}


def test_document_is_dropped_above_the_count_and_masked_at_it():
    at, above = (" ".join(f"user{i}@b.com" for i in range(n)) for n in (5, 6))
    kept, dropped = _step()(_documents([at, above]))
    assert kept.dropped is None
    assert kept.edits == {"email": 5}
    assert dropped.dropped == "too much personal data"
    assert dropped.because == "6 finds > 5"
    assert dropped.document.text == above
    (masked,) = _step(max_finds=None)(_documents([above]))
    assert masked.edits == {"email": 6}


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), max_size=6))
def test_outcome_depends_on_the_document_alone_and_a_second_run_changes_nothing(texts):
    documents = _documents(texts)
    step = _step()
    outcomes = step(documents)
    shuffled = random.Random(0).sample(documents, len(documents))
    again = {outcome.document.id: outcome for outcome in _step()(shuffled)}
    assert [again[d.id] for d in documents] == list(outcomes)
    for outcome in outcomes:
        assert set(outcome.edits) <= set(step.rules)
        if outcome.dropped is None:
            assert step([outcome.document])[0] == (outcome.document, None, "", {})
        else:
            assert outcome.dropped in step.rules


def test_rules_are_those_of_the_kinds_asked_for():
    assert list(_step(kinds=("phone", "email"), max_finds=None).rules) == ["email", "phone"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ("email", "fone")}, r"^kinds\[1\]='fone' must be one of .*phone"),
        ({"kinds": ()}, "^kinds is empty; name at least one"),
        ({"max_finds": -1}, "^max_finds=-1 must be ≥ 0"),
        ({"regions": ("Germany",)}, "^regions: 'Germany' is no region"),
    ],
)
def test_impossible_config_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)


def test_data_card_does_not_show_what_was_masked(tmp_path):
    secret = "jane.roe@example.com"
    records = [{"id": f"d{i}", "text": f"Write to {secret} by {i}."} for i in range(10)]
    records += [{"id": "full", "text": " ".join(f"p{i}.{secret}" for i in range(9))}]
    source = corpora.write_lines(tmp_path / "in.jsonl", records)
    config = corpora.make_config([source], steps=("mask_pii",), heldout_frac=0)
    corpora.prepare(config, tmp_path / "out")
    for name in ("card.json", "card.md"):
        shown = (tmp_path / "out" / name).read_text()
        assert "Write to <EMAIL> by" in shown
        assert secret not in shown
