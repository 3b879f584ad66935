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
        for name in ("train", "heldout")
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
    identities = [row["id"] for rows in written.values() for row in rows]
    assert len(set(identities)) == len(identities)
