"""Sections of the data card on how documents are spread, and on what steps found in the corpus."""

from collections.abc import Mapping
from typing import Any

from jaxtrain.corpus import card_plots
from jaxtrain.corpus.card_page import MAX_ROWS, Page, cell
from jaxtrain.corpus.card_plots import AS_READ, KEPT, REMOVED, Bar
from jaxtrain.corpus.distributions import Distribution, number_bin_edges
from jaxtrain.corpus.ledger import INPUT, LENGTH, OUTPUT
from jaxtrain.corpus.ledger import REMOVED as REMOVED_PLACE


def distributions(page: Page, card: Mapping[str, Any]) -> None:
    """Lengths, then every field that is known of documents: as read, written, removed for it."""
    found = {
        place: {field: Distribution.from_json(each) for field, each in fields.items()}
        for place, fields in card["distributions"].items()
    }
    page.add("## Distributions")
    places = {
        INPUT: ("as read", AS_READ),
        OUTPUT: ("written", KEPT),
        REMOVED_PLACE: ("removed by the step that measured it", REMOVED),
    }
    fields = dict.fromkeys(field for place in places for field in sorted(found.get(place, {})))
    for field in fields:
        series = {
            title: (found[place][field], colour)
            for place, (title, colour) in places.items()
            if field in found.get(place, {})
        }
        _distribution(page, field, series)


def _distribution(page: Page, field: str, series: Mapping[str, tuple[Distribution, str]]) -> None:
    indices = [index for each, _ in series.values() for index in each.bins]
    if indices:
        label = _length_label if field == LENGTH else _number_label
        shown = range(min(indices), max(indices) + 1)
        counts = {
            name: ([each.bins[index] for index in shown], colour)
            for name, (each, colour) in series.items()
        }
        title = "Document length (bytes)" if field == LENGTH else field
        drawn = card_plots.histogram(f"{title}: documents", [label(i) for i in shown], counts)
        page.plot(f"field-{field}", drawn, title)
    values = sorted({value for each, _ in series.values() for value in each.values})
    if values:
        page.table(
            [field, *series],
            [[value, *(each.values[value] for each, _ in series.values())] for value in values],
        )
    for name, (each, _) in series.items():
        if each.too_many_values:
            page.add(f"`{field}` ({name}) holds too many different values to be counted.")
        if each.missing:
            page.add(f"`{field}` ({name}) is missing or no number in {each.missing:,} documents.")


def _length_label(index: int) -> str:
    """The least length of a bin."""
    least = 1 << (index - 1) if index else 0
    for unit in ("", "K", "M"):
        if least < 1024:
            return f"{least}{unit}"
        least //= 1024
    return f"{least}G"


def _number_label(index: int) -> str:
    edge = number_bin_edges(index)[0]
    return f"{edge:,.0f}" if 1000 <= abs(edge) < 1e7 else f"{edge:.3g}"


def global_steps(page: Page, card: Mapping[str, Any]) -> None:
    """Whatever figures steps over the whole corpus give, by their form."""
    for step, figures in card["global_steps"].items():
        page.add(f"## {step}")
        plain = {key: value for key, value in figures.items() if not _is_nested(value)}
        page.table(["", ""], list(plain.items()))
        for key, value in figures.items():
            if _is_nested(value) and value:
                _figure(page, step, key, value)


def _figure(page: Page, step: str, key: str, value: Any) -> None:
    title = key.replace("_", " ")
    named = dict(enumerate(value, 1)) if isinstance(value, list) else dict(value)
    page.add(f"### {title}")
    if all(isinstance(each, (int, float)) for each in named.values()):
        rows = _summed_up([(str(name), each) for name, each in named.items()])
        drawn = card_plots.bars(f"{step}: {title}", [Bar(n, [(v, KEPT)], cell(v)) for n, v in rows])
        page.plot(f"{step}-{key}", drawn, title)
    elif all(isinstance(each, Mapping) for each in named.values()):
        columns = list(dict.fromkeys(column for each in named.values() for column in each))
        rows = [[name, *(each.get(c, "") for c in columns)] for name, each in named.items()]
        page.table(["", *columns], rows)
    else:
        page.table(["", ""], list(named.items()))


def _summed_up(rows: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The first rows, and those that follow as one."""
    if len(rows) <= MAX_ROWS:
        return rows
    head, rest = rows[: MAX_ROWS - 1], rows[MAX_ROWS - 1 :]
    return [*head, (f"{rest[0][0]} … {rest[-1][0]}", sum(value for _, value in rest))]


def _is_nested(value: Any) -> bool:
    return isinstance(value, (Mapping, list))
