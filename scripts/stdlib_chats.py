"""Conversations out of the Python standard library, and pairs of answers to prefer one of.

A user shows a function's first line and says what it does, in the first paragraph of its docstring;
the answer is the function without the docstring. Written as OpenAI messages, whole or not at all.
In a pair the chosen answer is that function, and the rejected one, in turn, the same first line
with the body of another function, or with its own body spoilt: two lines have changed places.
One module in --heldout_one_in, chosen by a hash of its name, goes into heldout.jsonl with all its
functions, so that no function stands in both. (A model that was pre-trained on the library has read
all of them; held-out here is what it was not taught to answer.)

    python scripts/stdlib_chats.py --out runs/quickstart/chats
"""

import argparse
import ast
import hashlib
import json
import pathlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxtrain import files
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import ReadingConfig, stdlib

_MAX_BODY_CHARS = 500  # about 150 tokens: question and answer fit into rows of 256
_MIN_DOCSTRING_CHARS = 20
_PAIR_ONE_IN = 4  # functions: as many pairs as a laptop goes through once in a minute


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="DIR")
    parser.add_argument("--heldout_one_in", type=int, default=10, metavar="N", help="modules (10)")
    options = parser.parse_args()
    rows: dict[str, list[Row]] = {"train": [], "heldout": []}
    for document in _sources():
        digest = hashlib.sha256(document.id.encode()).digest()
        is_heldout = int.from_bytes(digest[:8], "big") % options.heldout_one_in == 0
        rows["heldout" if is_heldout else "train"] += _rows(document)
    for name, found in rows.items():
        _write(options.out / f"{name}.jsonl", [_conversation(row) for row in found])
        _write(options.out / f"pairs-{name}.jsonl", list(_pairs(found)))


def _write(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with files.write_whole(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    print(f"{path}: {len(rows):,} rows")


class Row(NamedTuple):
    """A documented function."""

    id: str
    asked: str
    head: str
    body: str


def _conversation(row: Row) -> dict[str, Any]:
    said = (("user", f"{row.asked}\n\n{row.head}"), ("assistant", f"{row.head}\n{row.body}"))
    return {
        "id": row.id,
        "messages": [{"role": role, "content": content} for role, content in said],
    }


def _pairs(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows[::_PAIR_ONE_IN]):
        other = rows[(number + len(rows) // 2) % len(rows)].body
        bodies = [other, _spoilt(row.body)] if number % 2 else [_spoilt(row.body), other]
        rejected = next((body for body in bodies if body and body != row.body), None)
        if rejected is not None:
            yield {
                "id": row.id,
                "prompt": f"{row.asked}\n\n{row.head}",
                "chosen": f"{row.head}\n{row.body}",
                "rejected": f"{row.head}\n{rejected}",
            }


def _spoilt(body: str) -> str | None:
    """The first line and the last one change places; None where there are no two."""
    lines = body.split("\n")
    return "\n".join([lines[-1], *lines[1:-1], lines[0]]) if len(lines) > 1 else None


def _sources() -> Iterator[Document]:
    (part,) = stdlib.unit("source").parts
    for item in stdlib.read(part, ReadingConfig()):
        if isinstance(item, Document) and "#" not in item.id:  # a docstring alone has one
            yield item


def _rows(document: Document) -> Iterator[Row]:
    for node in ast.walk(ast.parse(document.text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        docstring = ast.get_docstring(node)
        if not docstring or len(docstring) < _MIN_DOCSTRING_CHARS or len(node.body) < 2:
            continue
        asked = " ".join(docstring.split("\n\n")[0].split())
        head, body = _signature(node, document.text), _body(node, document.text)
        if len(head) + len(body) > _MAX_BODY_CHARS:
            continue
        yield Row(f"{document.id}#L{node.lineno}:{node.name}", asked, head, body)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> str:
    """The lines from `def` to the colon, without decorators."""
    return _lines(text, node.lineno, node.body[0].lineno - 1)


def _body(node: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> str:
    """The lines behind the docstring."""
    lines = _lines(text, (node.body[0].end_lineno or 0) + 1, node.end_lineno or 0)
    return textwrap.indent(lines.strip("\n"), " " * 4)


def _lines(text: str, first: int, last: int) -> str:
    return textwrap.dedent("\n".join(text.split("\n")[first - 1 : last]))


if __name__ == "__main__":
    main()
