"""Sections of the data card on how documents are spread, and on what steps found in the corpus."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from jaxtrain.corpus import card_plots
from jaxtrain.corpus.card_page import MAX_ROWS, Page, cell
from jaxtrain.corpus.card_plots import AS_READ, KEPT, REMOVED, Bar
from jaxtrain.corpus.distributions import Distribution, number_bin_edges
from jaxtrain.corpus.ledger import INPUT, LANGUAGE, LENGTH, OUTPUT
from jaxtrain.corpus.ledger import REMOVED as REMOVED_PLACE

_WIDE = 8  # columns that a table may have before it is turned


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
            if field in found.get(place, {}) and _has_values(found[place][field])
        }
        if field != LANGUAGE:  # it has a section of its own
            _distribution(page, field, series)


def _has_values(distribution: Distribution) -> bool:
    return bool(distribution.bins or distribution.values or distribution.too_many_values)


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
    totals: Counter[str] = sum((each.values for each, _ in series.values()), start=Counter())
    values = sorted(totals, key=lambda value: (-totals[value], value))
    page.table(
        [field, *series],
        [
            [value, *(each.values[value] for each, _ in series.values())]
            for value in values[:MAX_ROWS]
        ],
    )
    if values[MAX_ROWS:]:
        page.add(f"{len(values) - MAX_ROWS:,} more values of `{field}` are in card.json.")
    for name, (each, _) in series.items():
        if each.too_many_values:
            page.add(f"`{field}` ({name}) holds too many different values to be counted.")
        if each.missing:
            page.add(f"`{field}` ({name}): nothing to count in {each.missing:,} documents.")


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
        if _is_table(figures):
            _table(page, figures)
            continue
        single = {key: value for key, value in figures.items() if not _is_nested(value)}
        page.table(["", ""], [[_words(key), value] for key, value in single.items()])
        for key, value in figures.items():
            if _is_nested(value) and value:
                page.add(f"### {_words(key)}")
                _figure(page, step, key, value)


def _figure(page: Page, step: str, key: str, value: Any) -> None:
    named = dict(enumerate(value, 1)) if isinstance(value, list) else value
    if all(isinstance(each, (int, float)) for each in named.values()):
        rows = _summed_up([(str(name), each) for name, each in named.items()])
        chart = [Bar(name, [(each, KEPT)], cell(each)) for name, each in rows]
        page.plot(f"{step}-{key}", card_plots.bars(f"{step}: {_words(key)}", chart), _words(key))
    elif _is_table(named):
        _table(page, named)
    else:
        page.table(["", ""], list(_flat(named).items()))


def _is_table(named: Mapping[Any, Any]) -> bool:
    """Whether these are rows of one table, and not counts each by its own key."""
    rows = list(named.values())
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        return False
    mixed = any(not isinstance(value, (int, float)) for row in rows for value in row.values())
    return mixed or (len(rows) > 1 and all(row.keys() == rows[0].keys() for row in rows))


def _table(page: Page, named: Mapping[Any, Mapping[str, Any]]) -> None:
    rows = {str(name): _flat(each) for name, each in named.items()}
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    if len(columns) > _WIDE >= len(rows):  # easier to read the other way round
        page.table(["", *rows], [[c, *(row.get(c, "") for row in rows.values())] for c in columns])
    else:
        page.table(
            ["", *columns], [[n, *(row.get(c, "") for c in columns)] for n, row in rows.items()]
        )


def _flat(values: Mapping[Any, Any], before: str = "") -> dict[str, Any]:
    """Nested values side by side; of a list its length, of a hash its beginning."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{before}{_words(key)}"
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}: ")
        else:
            hashes = [value] if isinstance(value, str) else value
            if key == "sha256":
                flat[name] = ", ".join(each[:12] for each in hashes)
            else:
                flat[name] = len(value) if isinstance(value, list) else value
    return flat


def _words(key: Any) -> str:
    return str(key).replace("_", " ")


def _summed_up(rows: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The first rows, and those that follow as one."""
    if len(rows) <= MAX_ROWS:
        return rows
    head, rest = rows[: MAX_ROWS - 1], rows[MAX_ROWS - 1 :]
    return [*head, (f"{rest[0][0]} … {rest[-1][0]}", sum(value for _, value in rest))]


def _is_nested(value: Any) -> bool:
    return isinstance(value, (Mapping, list))
