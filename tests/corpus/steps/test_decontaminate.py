import gzip
import json
import random
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Workspace
from jaxtrain.corpus.steps import decontaminate

_QUESTION = (
    "Mira's orchard has 12 rows of apple trees, and every row holds 35 trees; one storm in May "
    "felled a sixth of them. How many trees are still standing in the orchard afterwards?"
)
_ANSWER = (
    "There were 12 × 35 = 420 trees, the storm felled 420 / 6 = 70, so 350 trees remain standing."
)


def _other(seed, num_words):
    rng = random.Random(seed)
    return " ".join(f"{rng.choice('bcdfg')}word{rng.randrange(10_000)}" for _ in range(num_words))


def _documents(*texts):
    return [Document(str(number), text, "s", {}) for number, text in enumerate(texts)]


@pytest.fixture
def make_step(tmp_path):
    """Makes the step for items of (question, answer)."""

    def make(items=((_QUESTION, _ANSWER),), **options):
        path = tmp_path / "bench.jsonl"
        path.write_text("\n".join(json.dumps({"q": q, "a": a}) for q, a in items))
        config = decontaminate.Config((f"sums={path}:q,a",), **options)
        decontaminate.fit(config, Workspace(tmp_path))
        return decontaminate.make(config, Workspace(tmp_path))

    return make


def _decided(step, folder, *chunks):
    """The figures that the runner would get: observed arrays go through files."""
    paths = []
    for number, chunk in enumerate(chunks):
        paths.append(folder / f"{number}.npz")
        np.savez(paths[-1], **step.observe(chunk))
    return step.decide(paths, None, folder)


def _applied(step, folder, documents):
    """The outcomes of all three passes over one chunk."""
    _decided(step, folder, documents)
    return step.apply(0, documents, folder)


def _outcomes(step, tmp_path, *texts):
    return _applied(step, tmp_path, _documents(*texts))


_COPIES = {
    "re-wrapped": re.sub(r"(\S+ \S+ \S+) ", r"\1\n    ", _QUESTION),
    "re-cased": _QUESTION.upper(),
    "without punctuation": re.sub(r"[^\w\s]", "", _QUESTION),
    "with other punctuation": _QUESTION.replace("'", "’").replace(" ", " — ").replace(",", "!!"),
    "full-width": "".join(chr(ord(c) + 0xFEE0) if "!" < c <= "~" else c for c in _QUESTION),
    "with unseen characters": _QUESTION.replace("e", "e\u200b"),
    "decomposed and embedded": unicodedata.normalize(
        "NFD", f"{_other(1, 300)} Ã {_QUESTION} é {_other(2, 300)}"
    ),
    "in part": _QUESTION[20:110],
}


@pytest.mark.parametrize("copy", _COPIES.values(), ids=_COPIES)
def test_copy_of_an_item_is_found(make_step, tmp_path, copy):
    [outcome] = _outcomes(make_step(), tmp_path, copy)
    assert (outcome.dropped, outcome.because) == ("question alone", "sums row 0")


def test_text_that_shares_only_words_with_an_item_stays_as_it_is(make_step, tmp_path):
    words = _QUESTION.split()
    random.Random(0).shuffle(words)
    texts = ["", " ".join(words), " ".join(_QUESTION.split()[:12]), _other(3, 500)]
    outcomes = _outcomes(make_step(), tmp_path, *texts)
    assert [outcome.document.text for outcome in outcomes] == texts
    assert not any(outcome.dropped or outcome.edits for outcome in outcomes)


def test_what_a_document_holds_of_an_item_is_its_rule(make_step, tmp_path):
    texts = [f"{_QUESTION}\n{_ANSWER}", f"{_ANSWER} {_other(0, 9)}", f"{_other(0, 9)} {_QUESTION}"]
    outcomes = _outcomes(make_step(), tmp_path, *texts)
    rules = [outcome.dropped for outcome in outcomes]
    assert rules == ["question with answer", "answer alone", "question alone"]


def test_characters_count_as_words_in_chinese(make_step, tmp_path):
    item = "果园里有十二行苹果树，每行三十五棵，五月的一场风暴刮倒了六分之一。还剩多少棵？"
    step = make_step([(item, "三百五十棵")])
    outcomes = _outcomes(step, tmp_path, f"前言。{item[4:19]}后记。", f"前言。{item[4:18]}后记。")
    assert [outcome.dropped for outcome in outcomes] == ["question alone", None]


def test_excision_takes_the_hit_with_its_window_and_keeps_the_rest(make_step, tmp_path):
    step = make_step(action="excise")
    before, after = _other(1, 100), _other(2, 100)
    [outcome] = _outcomes(step, tmp_path, f"{before} {_QUESTION} {after}")
    assert outcome.dropped is None
    assert outcome.edits == {"question alone": 1}
    left, right = outcome.document.text.split("\n\n")
    assert before.startswith(left)
    assert after.endswith(right)
    assert 200 <= len(before) - len(left) <= 230
    assert 199 <= len(after) - len(right) <= 230


def test_document_in_too_many_pieces_or_without_any_is_dropped(make_step, tmp_path):
    step = make_step(action="excise")
    eleven = _QUESTION.join(f" {_other(seed, 100)} " for seed in range(11))
    ten = _QUESTION.join(f" {_other(seed, 100)} " for seed in range(10))
    short = f"{_other(1, 10)} {_QUESTION}"
    outcomes = _outcomes(step, tmp_path, eleven, ten, short)
    assert [outcome.dropped for outcome in outcomes] == ["too many pieces", None, "nothing left"]
    assert outcomes[0].because == "sums row 0: 11 pieces > 10"
    assert set(step.rules) >= {outcome.dropped for outcome in outcomes} - {None}


_parts = st.lists(
    st.one_of(
        st.sampled_from([_QUESTION, _ANSWER, _QUESTION[:150], _ANSWER[30:]]),
        st.builds(_other, st.integers(0, 99), st.integers(1, 120)),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40)
@given(st.lists(_parts, max_size=5), st.sampled_from(["drop", "excise"]), st.randoms())
def test_outcome_depends_on_nothing_but_the_document_and_a_second_time_removes_nothing(
    tmp_path_factory, texts, action, rng
):
    folder = tmp_path_factory.mktemp("bench")
    (folder / "b.jsonl").write_text(json.dumps({"q": _QUESTION, "a": _ANSWER}))
    config = decontaminate.Config((f"b={folder}/b.jsonl:q,a",), action=action)
    decontaminate.fit(config, Workspace(folder))
    step = decontaminate.make(config, Workspace(folder))
    documents = _documents(*map(" ".join, texts))
    outcomes = _applied(step, folder, documents)
    order = rng.sample(range(len(documents)), len(documents))
    shuffled = _applied(step, folder, [documents[place] for place in order])
    assert shuffled == [outcomes[place] for place in order]
    kept = [outcome.document for outcome in outcomes if outcome.dropped is None]
    assert all(document.text for document in kept)
    again = _applied(step, folder, kept)
    assert [(each.dropped, each.document, dict(each.edits)) for each in again] == [
        (None, document, {}) for document in kept
    ]


def test_figures_say_what_is_covered_before_and_after(make_step, tmp_path):
    step = make_step([(_QUESTION, _ANSWER), ("What is it?", "That."), (_other(7, 30), "No.")])
    documents = _documents(f"{_QUESTION} {_ANSWER}", _other(5, 50), " ".join(_ANSWER.split()[:12]))
    figures = _decided(step, tmp_path, documents[:2], [], documents[2:])
    sums = figures["sums"]
    assert json.loads(json.dumps(figures)) == figures
    assert sums["documents"]["question with answer"] == 1
    assert sums["not_looked_for"] == 1
    assert sums["before"] == {"dirty": 1, "clean": 1, "between": 0, "not_measured": 1}
    assert sums["after"] == {"dirty": 0, "clean": 2, "between": 0, "not_measured": 1}
    [row] = sums["rows"]
    assert (row["row"], row["before"]) == (0, 1.0)
    assert 0 < row["after"] < 0.1
    swapped = _decided(step, tmp_path, documents[::-1])
    assert swapped == figures


def test_figures_after_excision_are_of_the_text_that_is_left(make_step, tmp_path):
    step = make_step(action="excise")
    text = f"{_other(1, 100)} {_QUESTION} {_other(2, 100)} {_ANSWER}"
    [row] = _decided(step, tmp_path, _documents(text))["sums"]["rows"]
    assert row["before"] > 0.8
    assert row["after"] == 0


def test_chunks_are_judged_each_by_its_own_number(make_step, tmp_path):
    step = make_step()
    chunks = [_documents("x", _QUESTION), [], _documents(_ANSWER, "y", "z")]
    _decided(step, tmp_path, *chunks)
    dropped = [
        [outcome.dropped for outcome in step.apply(number, chunk, tmp_path)]
        for number, chunk in enumerate(chunks)
    ]
    assert dropped == [[None, "question alone"], [], ["answer alone", None, None]]


def test_missing_benchmarks_and_fields_are_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match=r"^benchmarks is empty; name"):
        decontaminate.check(decontaminate.Config())
    with pytest.raises(ValueError, match=r"^benchmarks: nowhere\.jsonl matches no file"):
        decontaminate.check(decontaminate.Config(("a=nowhere.jsonl:q",)))
    (tmp_path / "a.jsonl").write_text('{"q": "x"}\n')
    with pytest.raises(ValueError, match=r"^benchmarks: a: a\.jsonl:1: has no `quest` among"):
        decontaminate.check(decontaminate.Config((f"a={tmp_path / 'a.jsonl'}:quest",)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"benchmarks": ("gsm8k.jsonl",)}, r"^benchmarks: 'gsm8k.jsonl' must have the form"),
        ({"benchmarks": ("a=f:q", "a=g:q")}, r"^benchmarks has one name twice in a, a"),
        ({"n": 7}, r"^n=7 must be at least 8"),
        ({"max_pieces": 0}, r"^max_pieces=0 is too small"),
    ],
)
def test_config_that_cannot_be_meant_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        decontaminate.Config(**options)


def _rows(path):
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _five_ways(text, host):
    """An item as it may come to stand on a page: in another text's middle, each time changed."""
    head, tail = host[: len(host) // 2], host[len(host) // 2 :]
    copies = [
        text,
        "\n".join(re.findall(r"\S+(?:\s+\S+){0,4}", text)),  # other line breaks
        text.swapcase(),
        re.sub(r"[^\w\s]|_", " ", text),  # no punctuation
        re.sub(r"(\w) (\w)", r"\1, \2", text).replace("'", "’").replace("\n", "\u2028"),
    ]
    return [f"{head} {copy} {tail}" for copy in copies]


@pytest.mark.shared
def test_every_planted_item_is_found_and_no_clean_document_is_lost(shared_dir, tmp_path):
    data = shared_dir / "data"
    files = {
        "gsm8k": (data / "eval/gsm8k-test.jsonl.gz", ("question", "answer")),
        "humaneval": (data / "eval/HumanEval.jsonl.gz", ("prompt", "canonical_solution")),
    }
    specs = tuple(f"{name}={path}:{','.join(keys)}" for name, (path, keys) in files.items())
    config = decontaminate.Config(specs)
    decontaminate.fit(config, Workspace(tmp_path))
    step = decontaminate.make(config, Workspace(tmp_path))

    host = _other(0, 60)
    for name, (path, (question, answer)) in files.items():
        rows = _rows(path)
        texts = [each for row in rows for each in _five_ways(row[question], host)]
        texts += [
            each for row in rows[::10] for each in _five_ways(row[question] + row[answer], host)
        ]
        outcomes = _outcomes(step, tmp_path, *texts)
        missed = [text for text, out in zip(texts, outcomes, strict=True) if out.dropped is None]
        assert missed == [], f"{len(missed)} of {len(texts)} of {name}"

    clean = [
        Document(path.name, row["text"], path.name, {})
        for pattern in ("books-en/*.jsonl.gz", "docs-zh/*.jsonl.gz")
        for path in sorted(data.glob(pattern))
        for row in _rows(path)
    ]
    assert len(clean) > 1500
    lost = [out.because for out in _applied(step, tmp_path, clean) if out.dropped]
    assert lost == []
