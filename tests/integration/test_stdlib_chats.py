"""The conversations that scripts/stdlib_chats.py makes of the standard library."""

import ast
import json
import runpy

import pytest

from jaxtrain.conversations.forms import read


@pytest.fixture(scope="module")
def written(root_dir, tmp_path_factory):
    """The rows of both files."""
    out = tmp_path_factory.mktemp("chats")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["stdlib_chats.py", "--out", str(out)])
        runpy.run_path(str(root_dir / "scripts" / "stdlib_chats.py"), run_name="__main__")
    return {
        name: [json.loads(line) for line in (out / f"{name}.jsonl").open()]
        for name in ("train", "heldout", "pairs-train", "pairs-heldout")
    }


def test_every_answer_is_the_function_that_was_asked_for(written):
    assert len(written["train"]) > 1000
    for row in written["train"] + written["heldout"]:
        conversation = read(row)
        assert conversation.trained == (False, True)
        question, answer = (message["content"] for message in conversation.messages)
        (function,) = ast.parse(answer).body
        assert row["id"].endswith(f":{function.name}")
        assert answer.startswith(question.split("\n\n", 1)[1])
        assert ast.get_docstring(function) is None or len(function.body) == 1


def test_no_module_is_in_both_files(written):
    modules = {
        name: {row["id"].partition("#")[0] for row in rows} for name, rows in written.items()
    }
    assert modules["heldout"]
    assert not modules["train"] & modules["heldout"]
    for rows in written.values():
        assert len({row["id"] for row in rows}) == len(rows)
    identities = [row["id"] for name in ("train", "heldout") for row in written[name]]
    assert len(set(identities)) == len(identities)


@pytest.mark.parametrize("name", ["train", "heldout"])
def test_a_pair_prefers_the_function_to_one_with_another_body(written, name):
    functions = {row["id"]: row for row in written[name]}
    pairs = written[f"pairs-{name}"]
    assert len(pairs) > len(functions) / 5
    others = 0
    for row in pairs:
        question, answer = (message["content"] for message in functions[row["id"]]["messages"])
        assert (row["prompt"], row["chosen"]) == (question, answer)
        head = question.split("\n\n", 1)[1]
        assert row["rejected"] != row["chosen"]
        assert row["rejected"].startswith(f"{head}\n")
        lines = [sorted(row[side].split("\n")) for side in ("chosen", "rejected")]
        others += lines[0] != lines[1]
    assert 0.3 < others / len(pairs) < 0.8  # the rest are their own lines in another order
