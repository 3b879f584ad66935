"""The data card for a person: card.md and its charts, made of card.json alone."""

import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtrain import files
from jaxtrain.corpus import card_plots
from jaxtrain.corpus.card_figures import distributions, global_steps
from jaxtrain.corpus.card_page import MAX_ROWS, PLOTS, Page, percent
from jaxtrain.corpus.card_plots import AS_READ, KEPT, REMOVED, Bar
from jaxtrain.corpus.card_rules import examples, flags, rules

CARD_MD = "card.md"
_ARRAY = re.compile(r"\[\n([^\[\]{}]*)\n *\]")  # of values without brackets, in indented JSON


def write_markdown(card: Mapping[str, Any], directory: str | os.PathLike[str]) -> None:
    """Writes card.md and its charts into `directory`; the same card gives the same bytes."""
    page = Page()
    for section in (
        _overview,
        _steps,
        rules,
        flags,
        _groups,
        distributions,
        global_steps,
        _passed_by,
        _tokens,
        examples,
        _made_from,
    ):
        section(page, card)
    folder = pathlib.Path(directory)
    for name, svg in page.plots.items():
        with files.write_whole(folder / PLOTS / name) as file:
            file.write(svg.encode())
    with files.write_whole(folder / CARD_MD) as file:
        file.write("\n\n".join(page.blocks).encode() + b"\n")


def _overview(page: Page, card: Mapping[str, Any]) -> None:
    read, written = card["summary"]["read"], card["summary"]["written"]
    rows = [["read", read["documents"], read["bytes"], "100 %"]]
    rows += [
        [
            f"written: {name}",
            each["documents"],
            each["bytes"],
            percent(each["bytes"], read["bytes"]),
        ]
        for name, each in written.items()
    ]
    page.table(["", "documents", "bytes", "of bytes"], rows)
    if rates := card["heldout_bits_per_byte"]:
        named = ", ".join(f"{name} {rate:.3f}" for name, rate in rates.items())
        page.add(f"Compressors on the held-out text, bits per byte: {named}.")


def _steps(page: Page, card: Mapping[str, Any]) -> None:
    read = card["summary"]["read"]["documents"]
    chart = [Bar("read", [(read, AS_READ)], f"{read:,}")]
    rows = []
    for step in card["steps"]:
        taken, kept = step["in"], step["out"]
        removed = taken["documents"] - kept["documents"]
        left = f"{kept['documents']:,} ({percent(kept['documents'], read)})"
        note = f"{left}, −{removed:,}" if removed else left
        chart.append(Bar(step["step"], [(kept["documents"], KEPT), (removed, REMOVED)], note))
        edited = step["bytes_added_by_edits"]
        rows.append(
            [
                step["step"],
                taken["documents"],
                removed,
                percent(removed, taken["documents"]),
                taken["bytes"] - kept["bytes"] + edited,
                f"{edited:+,}" if edited else "",
                kept["documents"],
                kept["bytes"],
            ]
        )
    page.add("## Steps", "Documents left after each step (blue) and removed by it (orange).")
    page.plot("steps", card_plots.bars("Documents left after each step", chart), "steps")
    heads = [
        "step",
        "in",
        "removed",
        "of in",
        "bytes removed",
        "bytes by edits",
        "out",
        "bytes out",
    ]
    page.table(heads, rows)


def _groups(page: Page, card: Mapping[str, Any]) -> None:
    for key, title in (("sources", "Sources"), ("languages", "Languages")):
        groups = card[key]
        if not any(groups):  # all of unknown language
            continue
        outputs = sorted({name for each in groups.values() for name in each["written"]})
        counts = {
            name: sum(each["written"].get(out, {}).get("documents", 0) for out in outputs)
            for name, each in groups.items()
        }
        order = sorted(groups, key=lambda name: (-counts[name], name))
        page.add(f"## {title}")
        chart = [Bar(n or "(unknown)", [(counts[n], KEPT)], f"{counts[n]:,}") for n in order]
        drawn = card_plots.bars(f"{title}: documents written", chart[:MAX_ROWS])
        page.plot(key, drawn, title)
        steps = [step["step"] for step in card["steps"]]
        page.table(
            [key[:-1], *(["read"] if key == "sources" else []), *steps, "written", "bytes"],
            [_group_row(name, groups[name], steps) for name in order[:MAX_ROWS]],
        )
        more = f" {len(order) - MAX_ROWS:,} more are in card.json." if order[MAX_ROWS:] else ""
        page.add(f"Documents left after each step, by {key[:-1]} as it is known then.{more}")


def _group_row(name: str, group: Mapping[str, Any], steps: Sequence[str]) -> list[Any]:
    read = [group["read"]["documents"]] if "read" in group else []
    left = [group["steps"].get(step, {}).get("out", {}).get("documents", "") for step in steps]
    written = group["written"].values()
    totals = [sum(each[unit] for each in written) for unit in ("documents", "bytes")]
    return [name or "(unknown)", *read, *left, *totals]


def _passed_by(page: Page, card: Mapping[str, Any]) -> None:
    if not card["passed_by"]:
        return
    page.add("## Input that gave no document")
    rows = []
    for reason, found in card["passed_by"].items():
        places = [
            f"{name}:{offset}"
            for name, each in found["files"].items()
            for offset in each["offsets"]
        ]
        more = " …" if len(places) < found["amount"]["documents"] or len(places) > 3 else ""
        amount = found["amount"]
        rows.append([reason, amount["documents"], amount["bytes"], ", ".join(places[:3]) + more])
    page.table(["reason", "records", "bytes", "first places"], rows)


def _tokens(page: Page, card: Mapping[str, Any]) -> None:
    for tokenizer, outputs in card.get("tokens", {}).items():
        page.add("## Tokens", f"Tokenizer `{tokenizer[:12]}`.")
        page.table(
            ["output", "source", "tokens"],
            [
                [name, source, number]
                for name, each in outputs.items()
                for source, number in [("all", each["total"]), *each["sources"].items()]
            ],
        )


def _made_from(page: Page, card: Mapping[str, Any]) -> None:
    """The inputs with their hashes and licences, and every setting."""
    made_from = dict(card["made_from"])
    inputs = made_from.pop("inputs", {})
    licences = dict(
        given.partition("=")[::2] for given in made_from.get("config", {}).get("licences", [])
    )
    rows = [
        [name, each["source"], licences.get(each["source"], "not given"), each["sha256"]]
        for name, each in inputs.items()
    ]
    page.add("## Made from")
    page.table(["input", "source", "licence", "SHA-256"], rows[:MAX_ROWS])
    if rows[MAX_ROWS:]:
        page.add(f"{len(rows) - MAX_ROWS:,} more inputs are in card.json.")
    settings = json.dumps(made_from, indent=2, ensure_ascii=False)
    page.add("```json\n" + _ARRAY.sub(_on_one_line, settings) + "\n```")


def _on_one_line(array: re.Match[str]) -> str:
    return "[" + " ".join(line.strip() for line in array[1].splitlines()) + "]"
