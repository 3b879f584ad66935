"""Sections of the data card on rules: what each removed or changed, which to look at, examples."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxtrain.corpus import card_plots
from jaxtrain.corpus.card import GREEDY_FRAC
from jaxtrain.corpus.card_page import MAX_ROWS, Page, cell, code, percent
from jaxtrain.corpus.card_plots import REMOVED, Bar


class _Rule(NamedTuple):
    name: str  # with its step
    counts: Mapping[str, int]
    taken: int  # documents that the step took
    examples: list[Mapping[str, Any]]

    @property
    def share(self) -> str:
        return percent(self.counts["documents"], self.taken)


def rules(page: Page, card: Mapping[str, Any]) -> None:
    """What each rule removed, the most first, and what each changed."""
    removals, edits = _removals(card), list(_rules(card, "edited"))
    page.add("## Rules")
    if not removals and not edits:
        page.add("No rule removed or changed anything.")
    if removals:
        chart = [_bar(rule) for rule in removals[:MAX_ROWS]]
        page.plot("removals", card_plots.bars("Documents removed by rule", chart), "removals")
    page.table(
        ["rule", "documents removed", "of its step's input", "bytes"],
        [
            [each.name, each.counts["documents"], each.share, each.counts["bytes"]]
            for each in removals
        ],
    )
    page.table(
        ["rule", "documents changed", "of its step's input", "places"],
        [
            [each.name, each.counts["documents"], each.share, each.counts["occurrences"]]
            for each in edits
        ],
    )


def flags(page: Page, card: Mapping[str, Any]) -> None:
    """Rules that removed most of what they saw, and those that did nothing."""
    greedy = [
        f"{each['step']}: {each['rule']} ({percent(each['removed_frac'], 1)})"
        for each in card["flags"]["greedy"]
    ]
    dead: dict[str, list[str]] = {}
    for each in card["flags"]["dead"]:
        dead.setdefault(each["step"], []).append(each["rule"])
    named = "; ".join(f"{step}: {', '.join(names)}" for step, names in dead.items())
    limit = f"{100 * GREEDY_FRAC:.0f} %"
    page.add(
        "## Flags",
        f"Greedy rules, which removed over {limit} of what their step took: "
        f"{cell(', '.join(greedy)) or 'none'}.",
        f"Dead rules, which did nothing: {cell(named) or 'none'}.",
    )


def examples(page: Page, card: Mapping[str, Any]) -> None:
    """A few documents of each rule."""
    shown = [*_removals(card), *_rules(card, "edited")]
    if shown:
        page.add("## Examples")
    for rule in shown:
        page.add(f"**{cell(rule.name)}**", "\n".join(map(_example, rule.examples)))


def _removals(card: Mapping[str, Any]) -> list[_Rule]:
    return sorted(_rules(card, "removed"), key=lambda each: (-each.counts["documents"], each.name))


def _rules(card: Mapping[str, Any], what: str) -> Iterator[_Rule]:
    for step in card["steps"]:
        for rule in step["rules"]:
            if what in rule:
                name, taken = f"{step['step']}: {rule['rule']}", step["in"]["documents"]
                yield _Rule(name, rule[what], taken, rule["examples"])


def _bar(rule: _Rule) -> Bar:
    number = rule.counts["documents"]
    return Bar(rule.name, [(number, REMOVED)], f"{number:,} ({rule.share} of its step's input)")


def _example(example: Mapping[str, Any]) -> str:
    because = f" — {cell(example['because'])}" if example["because"] else ""
    texts = [text for text in (example["text"], example["changed_to"]) if text]
    shown = " → ".join(code(text, exact=bool(example["changed_to"])) for text in texts)
    where = f" ({cell(example['origin'])})" if example["origin"] not in ("", example["id"]) else ""
    return f"- {cell(example['id'])}{where}{because}{': ' if shown else ''}{shown}"
