"""The data card for a person: card.md and its charts, made of card.json alone."""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtrain import files
from jaxtrain.corpus import card_plots
from jaxtrain.corpus.card import GREEDY_FRAC
from jaxtrain.corpus.card_figures import distributions, global_steps
from jaxtrain.corpus.card_page import MAX_ROWS, PLOTS, Page, cell, code, percent
from jaxtrain.corpus.card_plots import AS_READ, KEPT, REMOVED, Bar

CARD_MD = "card.md"


def write_markdown(card: Mapping[str, Any], directory: str | os.PathLike[str]) -> None:
    """Writes card.md and its charts into `directory`; the same card gives the same bytes."""
    page = Page()
    for section in (
        _overview,
        _steps,
        _rules,
        _flags,
        _groups,
        distributions,
        global_steps,
        _passed_by,
        _tokens,
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


def _rules(page: Page, card: Mapping[str, Any]) -> None:
    removals, edits = [], []
    for step in card["steps"]:
        for rule in step["rules"]:
            name, taken = f"{step['step']}: {rule['rule']}", step["in"]["documents"]
            if "removed" in rule:
                removals.append((name, rule["removed"], taken, rule["examples"]))
            if "edited" in rule:
                edits.append((name, rule["edited"], taken, rule["examples"]))
    page.add("## Rules")
    if not removals and not edits:
        page.add("No rule removed or changed anything.")
    if removals:
        removals.sort(key=lambda each: (-each[1]["documents"], each[0]))
        chart = [
            Bar(
                name,
                [(amount["documents"], REMOVED)],
                f"{amount['documents']:,} ({percent(amount['documents'], taken)} of its input)",
            )
            for name, amount, taken, _ in removals[:MAX_ROWS]
        ]
        page.plot("removals", card_plots.bars("Documents removed by rule", chart), "removals")
        page.table(
            ["rule", "documents removed", "of its step's input", "bytes"],
            [
                [name, each["documents"], percent(each["documents"], taken), each["bytes"]]
                for name, each, taken, _ in removals
            ],
        )
    page.table(
        ["rule", "documents changed", "of its step's input", "places"],
        [
            [name, each["documents"], percent(each["documents"], taken), each["occurrences"]]
            for name, each, taken, _ in edits
        ],
    )
    page.add("### Examples") if removals or edits else None
    for name, _, _, examples in removals + edits:
        page.add(f"**{cell(name)}**", "\n".join(map(_example, examples)))


def _example(example: Mapping[str, Any]) -> str:
    because = f" — {cell(example['because'])}" if example["because"] else ""
    shown = " → ".join(code(text) for text in (example["text"], example["changed_to"]) if text)
    where = f" ({cell(example['origin'])})" if example["origin"] not in ("", example["id"]) else ""
    return f"- {cell(example['id'])}{where}{because}{': ' if shown else ''}{shown}"


def _flags(page: Page, card: Mapping[str, Any]) -> None:
    greedy = [
        f"{cell(each['step'])}: {cell(each['rule'])} ({percent(each['removed_frac'], 1)})"
        for each in card["flags"]["greedy"]
    ]
    dead: dict[str, list[str]] = {}
    for each in card["flags"]["dead"]:
        dead.setdefault(each["step"], []).append(each["rule"])
    page.add("## Flags")
    page.add(
        f"Greedy rules, which removed over {GREEDY_FRAC:.0%} of what their step took: "
        f"{', '.join(greedy) or 'none'}.",
        "Dead rules, which did nothing: "
        + ("; ".join(f"{cell(k)}: {cell(', '.join(v))}" for k, v in dead.items()) or "none")
        + ".",
    )


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
            [_group_row(name, groups[name], steps) for name in order],
        )
        page.add(f"Documents left after each step, by {key[:-1]} as it is known then.")


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
    page.add(
        "## Made from",
        "```json\n" + json.dumps(card["made_from"], indent=2, ensure_ascii=False) + "\n```",
    )
