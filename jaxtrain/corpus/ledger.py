"""The ledger of a cleaning run: what came in, what each rule removed or changed, what went out.

A `Report` counts one chunk; reports add up to that of the run, in any order and however the corpus
was cut into chunks. `check` compares what the reader gave, what each step took and left, and what
the writer got, each counted where it happened: a document lost on the way is found.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxtrain.corpus.amounts import Amount, Edited, Flow, PassedBy, Places, plain, total
from jaxtrain.corpus.distributions import Distribution, length_bin
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.examples import EXAMPLES_PER_RULE, Example, make_example, smallest
from jaxtrain.corpus.step import Outcome

INPUT = "input"  # places at which distributions are taken: as read,
REMOVED = "removed"  # where the step that writes a field removes the document for it,
OUTPUT = "output"  # as written to any output
LANGUAGE = "language"  # the field by which documents are counted apart
LENGTH = "length"  # of the text in bytes, binned by powers of two


@dataclasses.dataclass(frozen=True)
class Declared:
    """What a step says of itself."""

    rules: tuple[str, ...] | None  # every name it can report; None where a user's step has no list
    writes: tuple[str, ...] = ()  # fields
    private: bool = False  # it acts on what must not be shown: examples hide the text as it came

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Declared":
        """What `dataclasses.asdict` made of one."""
        rules = None if value["rules"] is None else tuple(value["rules"])
        return cls(rules, tuple(value["writes"]), value["private"])


class Report:
    """The counts of some documents on their way through all steps.

    Where the steps run in several passes, each pass may count in a report of its own, made with
    all the steps of the run.
    """

    def __init__(self, steps: Mapping[str, Declared], fields: Sequence[str] = ()) -> None:
        """`steps` in their order; `fields` are those whose distribution is taken as read."""
        self.steps = dict(steps)
        self.fields = tuple(fields)
        self.read: dict[str, Amount] = defaultdict(Amount)  # by source
        self.passed_by: dict[str, PassedBy] = defaultdict(PassedBy)  # by reason
        self.flows: dict[str, dict[tuple[str, str], Flow]] = {  # step -> (source, language) -> flow
            step: defaultdict(Flow) for step in steps
        }
        self.examples: dict[tuple[str, str], list[Example]] = defaultdict(list)  # step, rule
        # output, source, language
        self.written: dict[tuple[str, str, str], Amount] = defaultdict(Amount)
        self.distributions: dict[tuple[str, str], Distribution] = defaultdict(
            Distribution
        )  # place, field

    def take_in(self, documents: Iterable[Document]) -> None:
        """Documents were read."""
        batch = list(documents)
        by_source: dict[str, list[int]] = defaultdict(list)
        for document in batch:
            by_source[document.source].append(document.num_bytes)
        for source, sizes in by_source.items():
            self.read[source] += Amount(len(sizes), sum(sizes))
        self._describe(INPUT, batch, self.fields)

    def pass_by(self, file: str, reason: str, offset: int, num_bytes: int) -> None:
        """Input at `offset` of `file`, in its own units, gave no document."""
        amount = Amount(1, num_bytes)
        self.passed_by[reason] += PassedBy(amount, {file: Places(amount, (offset,))})

    def record(self, step: str, batch: Sequence[Document], outcomes: Sequence[Outcome]) -> None:
        """A step judged a batch.

        Raises:
          ValueError: where the outcomes are none that a step may give, naming step and document.
        """
        if len(outcomes) != len(batch):
            raise ValueError(
                f"step {step} returned {len(outcomes)} outcomes for {len(batch)} documents; "
                "it must return one for each"
            )
        rules = self.steps[step].rules
        groups: dict[tuple[str, str], list[_Judged]] = defaultdict(list)
        for document, outcome in zip(batch, outcomes, strict=True):
            check_outcome(step, rules, document, outcome)
            after = outcome.document
            size = document.num_bytes
            new_size = size if after.text is document.text else after.num_bytes
            groups[after.source, _language(after)].append(_Judged(outcome, size, new_size))
            if outcome.dropped is not None:
                self._describe(REMOVED, [after], self.steps[step].writes)
            if outcome.dropped is not None or outcome.edits:
                self._exemplify(step, document, outcome)
        for key, judged in groups.items():
            self.flows[step][key] += _flow(judged)

    def write(self, output: str, documents: Iterable[Document]) -> None:
        """Documents were written to an output, "train" or "heldout"."""
        batch = list(documents)
        groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for document in batch:
            groups[output, document.source, _language(document)].append(document.num_bytes)
        for key, sizes in groups.items():
            self.written[key] += Amount(len(sizes), sum(sizes))
        written = (field for step in self.steps.values() for field in step.writes)
        self._describe(OUTPUT, batch, (*self.fields, *written))

    def check(self) -> None:
        """Raises AssertionError with the sums where a document, or a byte, is unaccounted for."""
        before, left = "read", dict(self.read)
        for step in self.steps:
            flow = total(self.flows[step].values())
            lost = sum(flow.dropped.values(), start=flow.kept)
            assert flow.taken + Amount(0, flow.grown_bytes) == lost, (
                f"ledger: {step}: in {flow.taken} + {flow.grown_bytes} bytes by edits != "
                f"out + dropped {lost}"
            )
            taken = self._by_source(step, "taken")
            assert taken == left, f"ledger: {step} took {taken}, but {before} left {left}"
            before, left = step, self._by_source(step, "kept")
        written: dict[str, Amount] = defaultdict(Amount)
        for (_, source, _), amount in self.written.items():
            written[source] += amount
        assert written == left, f"ledger: written {dict(written)}, but {before} left {left}"

    def _by_source(self, step: str, side: str) -> dict[str, Amount]:
        sums: dict[str, Amount] = defaultdict(Amount)
        for (source, _), flow in self.flows[step].items():
            sums[source] += getattr(flow, side)
        return {source: amount for source, amount in sums.items() if amount.documents}

    def _describe(self, place: str, batch: Iterable[Document], fields: Iterable[str]) -> None:
        distributions = {field: self.distributions[place, field] for field in fields}
        lengths = self.distributions[place, LENGTH].bins if place != REMOVED else None
        for document in batch:
            if lengths is not None:
                lengths[length_bin(document.num_bytes)] += 1
            for field, distribution in distributions.items():
                distribution.add(document.metadata.get(field))

    def _exemplify(self, step: str, document: Document, outcome: Outcome) -> None:
        example = make_example(document, outcome)
        if self.steps[step].private:
            example = example._replace(text="")
        edits = [rule for rule, occurrences in outcome.edits.items() if occurrences]
        for rule in edits if outcome.dropped is None else [outcome.dropped]:
            self.examples[step, rule] = smallest(
                [*self.examples[step, rule], example], EXAMPLES_PER_RULE
            )

    def __add__(self, other: "Report") -> "Report":
        both = Report(self.steps, self.fields)
        both += self
        both += other
        return both

    def __iadd__(self, other: "Report") -> "Report":
        """Adds in place: costs what `other` holds, however much is here already."""
        assert (self.steps, self.fields) == (other.steps, other.fields), "reports of other steps"
        _add_into(self.read, other.read)
        _add_into(self.passed_by, other.passed_by)
        for step, flows in other.flows.items():
            _add_into(self.flows[step], flows)
        for key, found in other.examples.items():
            self.examples[key] = smallest([*self.examples[key], *found], EXAMPLES_PER_RULE)
        _add_into(self.written, other.written)
        _add_into(self.distributions, other.distributions)
        return self

    def to_json(self) -> dict[str, Any]:
        """All counts as JSON values, in an order that does not depend on the run."""
        return {
            "steps": {name: dataclasses.asdict(step) for name, step in self.steps.items()},
            "fields": list(self.fields),
            "read": plain(self.read),
            "passed_by": plain(self.passed_by),
            "flows": {
                step: _nested({key: flow.to_json() for key, flow in flows.items()})
                for step, flows in self.flows.items()
            },
            "examples": _nested(
                {key: [each._asdict() for each in found] for key, found in self.examples.items()}
            ),
            "written": _nested(plain(self.written)),
            "distributions": _nested(
                {key: each.to_json() for key, each in self.distributions.items()}
            ),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Report":
        """The report that `to_json` wrote."""
        steps = {name: Declared.from_json(each) for name, each in value["steps"].items()}
        report = cls(steps, value["fields"])
        for source, amount in value["read"].items():
            report.read[source] = Amount(**amount)
        for reason, each in value["passed_by"].items():
            report.passed_by[reason] = PassedBy.from_json(each)
        for step, flows in value["flows"].items():
            for key, flow in _flat(flows, 2):
                report.flows[step][key] = Flow.from_json(flow)
        for key, found in _flat(value["examples"], 2):
            report.examples[key] = [Example(**each) for each in found]
        for key, amount in _flat(value["written"], 3):
            report.written[key] = Amount(**amount)
        for key, each in _flat(value["distributions"], 2):
            report.distributions[key] = Distribution.from_json(each)
        return report


class _Judged(NamedTuple):
    outcome: Outcome
    size: int  # bytes of text as it came
    new_size: int  # as it goes on


def _flow(judged: Sequence[_Judged]) -> Flow:
    """The flow of documents through a step, summed in integers first: there are many."""
    flow = Flow(taken=Amount(len(judged), sum(each.size for each in judged)))
    kept = [each for each in judged if each.outcome.dropped is None]
    flow.kept = Amount(len(kept), sum(each.new_size for each in kept))
    flow.grown_bytes = sum(each.new_size - each.size for each in kept)
    for outcome, size, _ in judged:
        if outcome.dropped is not None:
            flow.dropped[outcome.dropped] += Amount(1, size)
        else:
            for rule, occurrences in outcome.edits.items():
                if occurrences:
                    flow.edits[rule] += Edited(1, occurrences)
    return flow


def check_outcome(
    step: str, rules: Sequence[str] | None, document: Document, outcome: Outcome
) -> None:
    """Raises ValueError where a step may not give this outcome for this document."""
    after = outcome.document
    names = [outcome.dropped] if outcome.dropped is not None else outcome.edits
    for name in names:
        if rules is not None and name not in rules:
            raise ValueError(f"step {step} reports the rule {name!r}, but declares only {rules}")
    if after is document:
        return
    if (after.id, after.source) != (document.id, document.source):
        raise ValueError(
            f"step {step} made ({after.id!r}, source {after.source!r}) of document "
            f"({document.id!r}, source {document.source!r}); a step must leave both as they are"
        )
    if outcome.dropped is None and document.text and not after.text:
        raise ValueError(
            f"step {step} left no text of document {document.id!r}; it must drop it by a rule"
        )
    if after.text is not document.text:
        try:
            after.text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"step {step} left document {document.id!r} with a lone surrogate at character "
                f"{error.start}, which is no text"
            ) from error


def _add_into(sums: dict[Any, Any], more: Mapping[Any, Any]) -> None:
    for key, value in more.items():
        sums[key] = sums[key] + value


def _language(document: Document) -> str:
    language = document.metadata.get(LANGUAGE)
    return language if isinstance(language, str) else ""  # the input may hold anything


def _nested(flat: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """{(a, b): x} as {a: {b: x}}, ordered."""
    nested: dict[str, Any] = {}
    for (*path, last), value in sorted(flat.items(), key=lambda item: item[0]):
        level = nested
        for name in path:
            level = level.setdefault(name, {})
        level[last] = value
    return nested


def _flat(nested: Mapping[str, Any], depth: int) -> Iterator[tuple[Any, Any]]:
    """The inverse of `_nested`."""
    for name, value in nested.items():
        if depth == 1:
            yield (name,), value
        else:
            for path, leaf in _flat(value, depth - 1):
                yield (name, *path), leaf
