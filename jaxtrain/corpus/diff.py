"""Two runs of the corpus stage compared: settings, what each rule removed, which documents moved.

Nothing but the cards and the fates of the documents is read: it costs minutes for what took days,
and takes the same memory however large the corpora are.
"""

import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from jaxtrain import files
from jaxtrain.corpus.layout import Layout
from jaxtrain.corpus.pairing import Pair, Row, pair_documents

NOT_READ = "not read"
SAME = "the same in both"
_KINDS: tuple[str, ...] = (
    SAME,
    "kept in A, removed in B",
    "removed in A, kept in B",
    "removed in both, by other rules",
    "written to another output",
    "written with another text",
    "only in A",
    "only in B",
)
_EXAMPLES = 3
_LINES_SHOWN = 40  # of settings that differ: inputs may be many

Differences = Callable[[Any, Any, str], Iterator[str]]


class Move(NamedTuple):
    """A document that the runs treat differently; sorts by its text and ids."""

    text_hash: str  # hex, of its text as read (in A where that has it)
    id_a: str | None
    id_b: str | None
    was: str  # the output in A, or "step: rule" that removed it, or NOT_READ
    now: str  # in B
    text_changed: bool  # written by both, with another text


def compare(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    differences: Differences,
    show: Callable[[Move], None] = lambda move: None,
) -> dict[str, Any]:
    """What differs from run A to run B, as JSON values.

    Args:
      a, b: workdirs that hold whole corpora.
      differences: lines that name where two trees differ, given both and a name for them.
      show: called with every document that moved, or whose text changed, in an order of its own.

    Raises:
      ValueError: where a directory holds no whole corpus.
    """
    card_a, card_b = _card(a), _card(b)
    tally = _Tally()
    for pair in pair_documents(_fates(a, card_a), _fates(b, card_b)):
        move = tally.add(pair)
        if move:
            show(move)
    return {
        "made_from": list(differences(card_a["made_from"], card_b["made_from"], "made_from")),
        "summary": {"a": card_a["summary"], "b": card_b["summary"]},
        "rules": _rules(card_a, card_b),
        "documents": tally.documents,
        "moves": tally.moves(),
    }


def report(difference: Mapping[str, Any]) -> str:
    """What `compare` found, for a person."""
    lines = ["made from:"]
    made_from = difference["made_from"]
    lines += [f"  {each}" for each in made_from[:_LINES_SHOWN]] or ["  the same"]
    if len(made_from) > _LINES_SHOWN:
        lines.append(f"  … and {len(made_from) - _LINES_SHOWN:,} more")
    lines += ["", f"{'documents removed by':<58}{'A':>14}{'B':>14}{'B − A':>14}"]
    for rule in difference["rules"]:
        change = (rule["b"] or 0) - (rule["a"] or 0)
        lines.append(
            f"{rule['step'] + ': ' + rule['rule']:<58}{_number(rule['a']):>14}"
            f"{_number(rule['b']):>14}{f'{change:+,}' if change else '':>14}"
        )
    counts = difference["documents"]
    lines += ["", "documents:"]
    lines += [f"  {name:<36}{count:>14,}" for name, count in counts.items()]
    for move in difference["moves"]:
        same = move["was"] == move["now"]
        way = f"{move['was']}, with another text" if same else f"{move['was']} → {move['now']}"
        lines += ["", f"{move['documents']:,} · {way}"]
        lines += [f"  {_named(example)}" for example in move["examples"]]
    return "\n".join(lines)


class _Tally:
    """Counts of pairs, with a few for each way that documents moved."""

    def __init__(self) -> None:
        self.documents = dict.fromkeys(_KINDS, 0)
        self._counts: dict[tuple[str, str], int] = {}
        self._examples: dict[tuple[str, str], list[Move]] = {}

    def add(self, pair: Pair) -> Move | None:
        """Counts a pair; returns what there is to tell of it."""
        a, b = pair
        kind = _kind(a, b)
        self.documents[kind] += 1
        if kind == SAME:
            return None
        move = _move(a, b)
        way = move.was, move.now
        self._counts[way] = self._counts.get(way, 0) + 1
        found = [*self._examples.get(way, []), move]
        self._examples[way] = sorted(found, key=_order)[:_EXAMPLES]
        return move

    def moves(self) -> list[dict[str, Any]]:
        """From where to where documents moved, the most frequent way first."""
        ways = sorted(self._counts, key=lambda way: (-self._counts[way], way))
        return [
            {
                "was": was,
                "now": now,
                "documents": self._counts[was, now],
                "examples": [each._asdict() for each in self._examples[was, now]],
            }
            for was, now in ways
        ]


def _kind(a: Row | None, b: Row | None) -> str:
    if a is None or b is None:
        return "only in B" if a is None else "only in A"
    if a.new_hash and b.new_hash:
        if a.fate != b.fate:
            return "written to another output"
        return SAME if a.new_hash == b.new_hash else "written with another text"
    if a.new_hash or b.new_hash:
        return "kept in A, removed in B" if a.new_hash else "removed in A, kept in B"
    return SAME if a.fate == b.fate else "removed in both, by other rules"


def _move(a: Row | None, b: Row | None) -> Move:
    row = a or b
    assert row, "a pair holds a document"
    return Move(
        text_hash=row.text_hash.hex(),
        id_a=a.id if a else None,
        id_b=b.id if b else None,
        was=a.fate if a else NOT_READ,
        now=b.fate if b else NOT_READ,
        text_changed=bool(a and b and a.new_hash and b.new_hash and a.new_hash != b.new_hash),
    )


def _order(move: Move) -> tuple[str, str, str]:
    return move.text_hash, move.id_a or "", move.id_b or ""


def _card(workdir: str | os.PathLike[str]) -> dict[str, Any]:
    card = Layout(pathlib.Path(workdir)).card
    if not card.exists():
        raise ValueError(
            f"{workdir} holds no whole corpus ({card.name} is missing); give the --workdir of a "
            "finished run"
        )
    return files.read_json(card)


def _fates(workdir: str | os.PathLike[str], card: Mapping[str, Any]) -> list[pathlib.Path]:
    folder = Layout(pathlib.Path(workdir)).fates(0).parent
    found = sorted(folder.glob("*.parquet"))
    num_rows = sum(pq.read_metadata(path).num_rows for path in found)
    num_read = card["summary"]["read"]["documents"]
    if num_rows != num_read:
        raise ValueError(
            f"{folder} tells of {num_rows:,} documents, but {num_read:,} were read; restore its "
            "files"
        )
    return found


def _rules(card_a: Mapping[str, Any], card_b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Documents that each rule removed; None where a run has no such rule."""
    a, b = (
        {
            (step["step"], rule["rule"]): rule.get("removed", {"documents": 0})["documents"]
            for step in card["steps"]
            for rule in step["rules"]
            if "edited" not in rule or "removed" in rule
        }
        for card in (card_a, card_b)
    )
    return [
        {"step": step, "rule": rule, "a": a.get((step, rule)), "b": b.get((step, rule))}
        for step, rule in dict.fromkeys([*a, *b])
        if a.get((step, rule)) or b.get((step, rule))
    ]


def _number(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def _named(move: Mapping[str, Any]) -> str:
    a, b = move["id_a"], move["id_b"]
    return a if a == b or b is None else b if a is None else f"{a} (in B: {b})"
