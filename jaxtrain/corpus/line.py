"""The cleaning line of a config: its steps by name, checked before anything is read.

A name is a module of `steps/` or `module:function`, a user's own. The line is cut into segments at
steps that have to see the whole corpus: all documents go through one segment before any goes on.
"""

import dataclasses
import difflib
import importlib
import inspect
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxtrain.corpus.chunks import RESERVED
from jaxtrain.corpus.config import STEP_MODULES, CorpusConfig, naming_settings
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.step import Executor, Fields, GlobalStep, Outcome, Step, Workspace

_FIELD_TYPES = (str, int, float, bool)


class NamedStep(NamedTuple):
    """A step of the line that is not made yet."""

    label: str  # its name, numbered where the line has it more than once
    name: str  # as in config.steps
    position: int

    @property
    def learns(self) -> bool:
        """Whether it has something to learn before it can be made."""
        return hasattr(STEP_MODULES.get(self.name), "fit")

    @property
    def folder(self) -> str:
        """A name for its files."""
        return f"{self.position:02d}-{self.name.replace(':', '.')}"

    def make(self, config: CorpusConfig, models: pathlib.Path) -> Step | GlobalStep:
        """The step itself; `models` holds a folder for each step that learns."""
        if self.name not in STEP_MODULES:
            return _own_step(self.name)
        settings = getattr(config, self.name)
        with naming_settings(settings, f"config.{self.name}"):
            return STEP_MODULES[self.name].make(settings, Workspace(models / self.folder))

    def fields(self, config: CorpusConfig, models: pathlib.Path) -> Fields:
        """What it needs and writes, before anything is learnt; refuses what it could not do."""
        if not self.learns:
            step = self.make(config, models)
            return Fields(step.needs, step.writes)
        settings = getattr(config, self.name)
        with naming_settings(settings, f"config.{self.name}"):
            return STEP_MODULES[self.name].check(settings)

    def fit(self, config: CorpusConfig, models: pathlib.Path, executor: Executor) -> None:
        """Learns what `make` then loads."""
        settings = getattr(config, self.name)
        with naming_settings(settings, f"config.{self.name}"):
            STEP_MODULES[self.name].fit(settings, Workspace(models / self.folder, executor))


class OwnStep:
    """A user's function over a batch, as a step."""

    def __init__(self, name: str, function: Any) -> None:
        self._name, self._function = name, function
        self.needs: Sequence[str] = tuple(getattr(function, "needs", ()))
        self.writes: Mapping[str, type] = dict(getattr(function, "writes", {}))
        rules = getattr(function, "rules", None)
        self.rules = None if rules is None else tuple(rules)  # None: any

    def __call__(self, batch: Sequence[Document]) -> Sequence[Outcome]:
        outcomes = list(self._function(batch))
        for outcome in outcomes:
            if not isinstance(outcome, Outcome):
                raise TypeError(
                    f"returned {type(outcome).__name__}; it must return an Outcome "
                    "(jaxtrain.corpus.step) for each document"
                )
        return outcomes


def named_steps(config: CorpusConfig) -> list[NamedStep]:
    """The steps of a config in their order.

    Raises:
      ValueError: for a name that is no step, or an own step that cannot be imported.
    """
    found = []
    for position, name in enumerate(config.steps):
        if ":" in name:
            _own_step(name)
        elif name not in STEP_MODULES:
            raise ValueError(f"config.steps: {_unknown(name)}")
        earlier = config.steps[:position].count(name)
        label = f"{name} ({earlier + 1})" if earlier else name
        found.append(NamedStep(label, name, position))
    return found


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, STEP_MODULES, n=3, cutoff=0.5)
    known = ", ".join(STEP_MODULES)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {known}"
    return f"{name!r} is no step; {hint} (your own is module:function)"


def _own_step(name: str) -> OwnStep:
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"config.steps: {name}: cannot import {module_name} ({error}); start from its folder, "
            "or put that on PYTHONPATH"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"config.steps: {name}: {module_name} has no function {function_name!r}")
    return OwnStep(name, function)


def own_source(name: str) -> bytes:
    """The source of the module that holds a user's own step."""
    module = importlib.import_module(name.partition(":")[0])
    file = inspect.getsourcefile(module)
    return pathlib.Path(file).read_bytes() if file else b""


def is_global(step: Step | GlobalStep) -> bool:
    """Whether a step has to see the whole corpus before it judges a document."""
    return hasattr(step, "decide")


class Segment(NamedTuple):
    """Steps that a document passes in one go, between what global steps learn and decide."""

    applies: NamedStep | None  # a global step, which has decided
    steps: tuple[NamedStep, ...]
    observes: NamedStep | None  # the next global step; None: the documents go to the outputs


@dataclasses.dataclass(frozen=True)
class Line:
    """A checked line: what there is to know of its steps without making them again."""

    segments: tuple[Segment, ...]
    rules: Mapping[str, tuple[str, ...] | None]  # label -> rules; None: any
    writes: Mapping[str, Mapping[str, type]]  # label -> field -> type
    private: frozenset[str]  # labels of steps that act on what must not be shown

    def fields_before(self, segment: int) -> dict[str, type]:
        """The fields that steps of segments before `segment` write, in their order."""
        fields: dict[str, type] = {}
        for each in self.segments[:segment]:
            for step in each.applies, *each.steps:
                fields |= self.writes[step.label] if step else {}
        return fields


def check_fields(steps: Sequence[tuple[NamedStep, Fields]], given: Iterable[str]) -> None:
    """Refuses a step that needs a field which nobody writes before it.

    Args:
      steps: in order.
      given: fields that the input is said to have.
    """
    known = {"id", "text", "source", "origin", *given}
    written_later = {field: named.label for named, step in steps for field in step.writes}
    for named, step in steps:
        for field, kind in step.writes.items():
            if field in RESERVED or kind not in _FIELD_TYPES:
                raise ValueError(
                    f"config.steps: {named.label} writes {field!r} as {kind}; a field is str, int, "
                    f"float or bool and none of {', '.join(RESERVED)}"
                )
        for field in step.needs:
            if field not in known:
                where = (
                    f"{written_later[field]} writes it, so must come before"
                    if field in written_later
                    else "no step writes it; name it in config.reading.fields if the input has it"
                )
                raise ValueError(
                    f"config.steps: {named.label} needs the field {field!r}, but {where}"
                )
        known |= set(step.writes)


def cut(steps: Sequence[tuple[NamedStep, Step | GlobalStep]]) -> Line:
    """The line as segments."""
    segments, applies, inside = [], None, []
    for named, step in steps:
        if is_global(step):
            segments.append(Segment(applies, tuple(inside), named))
            applies, inside = named, []
        else:
            inside.append(named)
    segments.append(Segment(applies, tuple(inside), None))
    rules = {
        named.label: None if step.rules is None else tuple(step.rules) for named, step in steps
    }
    writes = {named.label: step.writes for named, step in steps}
    private = frozenset(named.label for named, step in steps if getattr(step, "private", False))
    return Line(tuple(segments), rules, writes, private)
