"""One document through one step, as the tests of steps need it."""

import pathlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Outcome, Workspace


def judge(
    module: ModuleType, text: str, metadata: Mapping[str, Any] | None = None, **options: Any
) -> Outcome:
    """The outcome of a step of default options but those given."""
    step = module.make(module.Config(**options), Workspace(pathlib.Path("unused")))
    [outcome] = step([Document("one", text, "test", metadata or {})])
    assert outcome.dropped is None or outcome.dropped in step.rules
    assert set(outcome.edits) <= set(step.rules)
    assert all(count > 0 for count in outcome.edits.values())
    return outcome


def assert_second_run_changes_nothing(module: ModuleType, text: str, **options: Any) -> None:
    """What a step keeps, it keeps as it is when it comes again."""
    first = judge(module, text, **options)
    assert first.dropped is not None or bool(first.edits) == (first.document.text != text)
    if first.dropped is None:
        second = judge(module, first.document.text, **options)
        assert (second.dropped, dict(second.edits)) == (None, {})
        assert second.document.text == first.document.text
