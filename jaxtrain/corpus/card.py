"""The data card: what a corpus was made from, and what became of every document, as JSON values.

The same input and config give the same card, byte for byte: it holds no time, no path and nothing
of how the work was spread. So two cards can be compared line by line; `card_markdown.py` shows one
to a person.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from jaxtrain.corpus.amounts import Amount, Flow, added, plain, total
from jaxtrain.corpus.ledger import Report

GREEDY_FRAC = 0.5  # a rule that removes more than this share of what its step takes is flagged


def make_card(
    made_from: Mapping[str, Any],
    report: Report,
    global_figures: Mapping[str, Mapping[str, Any]],
    outputs: Mapping[str, Mapping[str, Any]],
    baselines: Mapping[str, float],
) -> dict[str, Any]:
    """The card of a run; the report must add up.

    Args:
      made_from: all that decides what the corpus holds: format and version of the code, config,
        inputs with the hash of their content, licences as given.
      global_figures: step -> what its `decide` returned.
      outputs: "train", "heldout" -> what was written: hashes and counts.
      baselines: compressor -> bits per byte on the held-out text.
    """
    report.check()
    return {
        "made_from": dict(made_from),
        "summary": _summary(report),
        "passed_by": plain(report.passed_by),
        "steps": [_step(report, step) for step in report.steps],
        "sources": _table(report, 0),
        "languages": _table(report, 1),
        "flags": flags(report),
        "distributions": report.to_json()["distributions"],
        "global_steps": {step: dict(figures) for step, figures in global_figures.items()},
        "heldout_bits_per_byte": dict(baselines),
        "outputs": {name: dict(output) for name, output in outputs.items()},
    }


def with_token_counts(
    card: Mapping[str, Any], tokenizer_sha256: str, tokens: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    """The card with the number of tokens of each output and source under a tokenizer.

    Counts of other tokenizers, and of other outputs under this one, stay.

    Args:
      tokens: output -> source -> number of tokens.
    """
    known = dict(card.get("tokens", {}))
    counted = {
        name: {"total": sum(by_source.values()), "sources": dict(sorted(by_source.items()))}
        for name, by_source in sorted(tokens.items())
    }
    known[tokenizer_sha256] = dict(sorted((known.get(tokenizer_sha256, {}) | counted).items()))
    return {**card, "tokens": dict(sorted(known.items()))}


def flags(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Rules to look at: "dead" ones, which met documents and did nothing, and "greedy" ones.

    A rule is greedy that removed more than `GREEDY_FRAC` of the documents that its step took.
    """
    dead, greedy = [], []
    for step, declared in report.steps.items():
        flow = total(report.flows[step].values())
        if not flow.taken.documents:
            continue
        fired = flow.dropped.keys() | flow.edits.keys()
        dead += [{"step": step, "rule": rule} for rule in declared.rules or () if rule not in fired]
        for rule, amount in sorted(flow.dropped.items()):
            if amount.documents > GREEDY_FRAC * flow.taken.documents:
                frac = amount.documents / flow.taken.documents
                greedy.append({"step": step, "rule": rule, "removed_frac": round(frac, 6)})
    return {"dead": dead, "greedy": greedy}


def _summary(report: Report) -> dict[str, Any]:
    written: dict[str, Amount] = defaultdict(Amount)
    for (output, _, _), amount in report.written.items():
        written[output] += amount
    return {
        "read": dataclasses.asdict(_sum(report.read.values())),
        "written": plain(written),
    }


def _step(report: Report, step: str) -> dict[str, Any]:
    """One step: what it took and left, and each of its rules, in the order that it declares."""
    flow = total(report.flows[step].values())
    fired = sorted(flow.dropped.keys() | flow.edits.keys())
    rules = dict.fromkeys([*(report.steps[step].rules or ()), *fired])
    return {
        "step": step,
        "in": dataclasses.asdict(flow.taken),
        "out": dataclasses.asdict(flow.kept),
        "bytes_added_by_edits": flow.grown_bytes,
        "rules": [_rule(report, step, rule, flow) for rule in rules],
    }


def _rule(report: Report, step: str, rule: str, flow: Flow) -> dict[str, Any]:
    found: dict[str, Any] = {"rule": rule}
    if rule in flow.dropped:
        found["removed"] = dataclasses.asdict(flow.dropped[rule])
    if rule in flow.edits:
        found["edited"] = dataclasses.asdict(flow.edits[rule])
    examples = report.examples.get((step, rule), [])
    return found | {"examples": [example._asdict() for example in examples]}


def _table(report: Report, part: int) -> dict[str, Any]:
    """Documents and bytes by source (part 0) or language (part 1), through the steps.

    The language is the one known after a step: before a step has found it, it is "".
    """
    names = {key[part] for flows in report.flows.values() for key in flows}
    names |= {key[1 + part] for key in report.written}
    if part == 0:
        names |= report.read.keys()
    return {name: _row(report, part, name) for name in sorted(names)}


def _row(report: Report, part: int, name: str) -> dict[str, Any]:
    steps = {}
    for step, flows in report.flows.items():
        flow = total(each for key, each in flows.items() if key[part] == name)
        if flow.taken.documents:
            steps[step] = {
                "in": dataclasses.asdict(flow.taken),
                "out": dataclasses.asdict(flow.kept),
                "removed": {rule: each.documents for rule, each in sorted(flow.dropped.items())},
            }
    written: dict[str, Amount] = added(
        Amount,
        *({key[0]: amount} for key, amount in report.written.items() if key[1 + part] == name),
    )
    read = {"read": dataclasses.asdict(report.read[name])} if part == 0 else {}
    return read | {"steps": steps, "written": plain(written)}


def _sum(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, start=Amount())
