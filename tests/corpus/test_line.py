import pathlib
import sys

import numpy as np
import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.executors import LocalExecutor
from jaxtrain.corpus.line import (
    NamedStep,
    OwnStep,
    check_fields,
    cut,
    is_global,
    named_steps,
    own_source,
)
from jaxtrain.corpus.step import Outcome
from tests.corpora import make_config


class _Step:
    rules = ("rule",)

    def __init__(self, needs=(), writes=None):
        self.needs, self.writes = needs, writes or {}


class _Global(_Step):
    def decide(self, observed, executor, scratch):
        return {}


def _line(**steps):
    return [(NamedStep(name, name, i), step) for i, (name, step) in enumerate(steps.items())]


def _names(segment):
    return tuple(
        part and (part.label if isinstance(part, NamedStep) else [each.label for each in part])
        for part in segment
    )


def test_line_is_cut_at_steps_that_see_everything():
    line = cut(_line(a=_Step(), b=_Global(), c=_Step(), d=_Step(), e=_Global()))
    assert [_names(segment) for segment in line.segments] == [
        (None, ["a"], "b"),
        ("b", ["c", "d"], "e"),
        ("e", (), None),
    ]
    assert not any(is_global(step) for _, step in _line(a=_Step()))


def test_line_without_steps_is_one_segment():
    assert [_names(segment) for segment in cut([]).segments] == [(None, (), None)]


def test_fields_before_a_segment_are_those_written_so_far():
    line = cut(
        _line(
            a=_Step(writes={"language": str}),
            b=_Global(writes={"cluster": int}),
            c=_Step(writes={"score": float}),
        )
    )
    assert [line.fields_before(i) for i in range(3)] == [
        {},
        {"language": str},
        {"language": str, "cluster": int, "score": float},
    ]


@pytest.mark.parametrize(
    ("steps", "given", "message"),
    [
        ({"a": _Step(needs=("mood",))}, (), "a needs the field 'mood', but no step writes it; nam"),
        (
            {"a": _Step(needs=("mood",)), "b": _Step(writes={"mood": str})},
            (),
            "but b writes it, so",
        ),
        ({"a": _Step(writes={"text": str})}, (), "a writes 'text' as .*; a field is str, int"),
        ({"a": _Step(writes={"x": np.float32})}, (), "a writes 'x' as .*float32.*; a field is str"),
    ],
)
def test_fields_that_do_not_fit_are_refused(steps, given, message):
    with pytest.raises(ValueError, match=message):
        check_fields(_line(**steps), given)


def test_fields_that_are_written_given_or_standard_may_be_needed():
    steps = _line(a=_Step(needs=("id", "origin", "mood"), writes={"x": int}), b=_Step(needs=("x",)))
    check_fields(steps, ("mood",))


def test_settings_of_a_step_are_named_by_their_path_in_errors(tmp_path):
    learns = named_steps(make_config([], steps=("score_perplexity", "drop_near_duplicates")))
    with pytest.raises(ValueError, match=r"^config\.score_perplexity\.reference is empty"):
        learns[0].fields(make_config([]), tmp_path)
    config = make_config([], drop_near_duplicates__reference=(str(tmp_path),))
    with pytest.raises(ValueError, match=r"^config\.drop_near_duplicates\.reference: .* has neith"):
        learns[1].make(config, tmp_path)
    (tmp_path / "bad.jsonl").write_text("no JSON\n")
    config = make_config([], score_perplexity__reference=(str(tmp_path / "bad.jsonl"),))
    assert set(learns[0].fields(config, tmp_path).writes) == {"perplexity", "perplexity_bucket"}
    with pytest.raises(
        ValueError, match=r"^config\.score_perplexity: .*bad\.jsonl:1: not JSON"
    ) as bad:
        learns[0].fit(config, tmp_path, LocalExecutor(1))
    assert "or set config.score_perplexity.reading.malformed=count" in str(bad.value)


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "line_steps.py").write_text("def f(batch):\n    return []\nx = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "line_steps", raising=False)
    return tmp_path / "line_steps.py"


def test_repeated_names_are_numbered_and_have_places_of_their_own(module):
    steps = named_steps(make_config([], steps=("normalize", "line_steps:f", "normalize")))
    assert [step.label for step in steps] == ["normalize", "line_steps:f", "normalize (2)"]
    assert [step.folder for step in steps] == ["00-normalize", "01-line_steps.f", "02-normalize"]


def test_name_is_no_step_or_no_function(module):
    for name, message in (
        ("normalise", "'normalise' is no step; did you mean normalize"),
        ("zzz", r"there are .*normalize.* \(your own is module:function\)"),
        ("line_steps:x", "line_steps has no function 'x'"),
        ("line_steps:", "line_steps has no function ''"),
    ):
        with pytest.raises(ValueError, match=message):
            named_steps(make_config([], steps=(name,)))


def test_own_function_may_leave_out_what_a_step_declares(module):
    step = named_steps(make_config([], steps=("line_steps:f",)))[0].make(
        make_config([]), pathlib.Path()
    )
    assert (tuple(step.needs), dict(step.writes), step.rules) == ((), {}, None)
    assert own_source("line_steps:f") == module.read_bytes()


def test_own_function_must_return_outcomes():
    document = Document("1", "text", "s", {})
    assert OwnStep("f", lambda batch: iter([Outcome(document)]))([document]) == [Outcome(document)]
    with pytest.raises(TypeError, match="returned Document; it must return an Outcome"):
        OwnStep("f", lambda batch: batch)([document])
