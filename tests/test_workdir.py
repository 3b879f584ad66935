import subprocess
import sys

import pytest

from jaxtrain import workdir


def split(old, new):
    """Keys that begin with `free` may change."""
    changed = [key for key in new if old.get(key) != new[key]]
    return [k for k in changed if not k.startswith("free")], [
        k for k in changed if k.startswith("free")
    ]


def test_check_of_a_new_directory_leaves_nothing_behind(tmp_path):
    assert workdir.check(tmp_path / "run", {"a": 1}, split) == []
    assert not (tmp_path / "run").exists()


def test_check_lists_harmless_differences_and_refuses_others(tmp_path):
    workdir.claim(tmp_path, {"a": 1, "free_log": 10}, {})
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    notes = workdir.check(tmp_path, {"a": 1, "free_log": 20}, split)
    assert notes == ["changed since this workdir was last used: free_log"]
    with pytest.raises(ValueError, match="belongs to another run, which differs in a"):
        workdir.check(tmp_path, {"a": 2, "free_log": 10}, split)


def test_a_start_that_never_trained_leaves_the_workdir_to_another_config(tmp_path):
    workdir.claim(tmp_path, {"a": 1}, {}, {"card.json": b"{}", "tokenizer.json": b"{}"})
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "checkpoints" / "1.orbax-checkpoint-tmp").mkdir(parents=True)
    (note,) = workdir.check(tmp_path, {"a": 2}, split)
    assert note == "taken over from a start that never trained, which differed in a"
    workdir.claim(tmp_path, {"a": 2}, {}, {"tokenizer.json": b"{}"})
    assert not (tmp_path / "card.json").exists()  # the other corpus's
    assert workdir.check(tmp_path, {"a": 2}, split) == []


@pytest.mark.parametrize("name", ["checkpoints/1", "checkpoints/1/run"])
def test_a_checkpoint_binds_the_workdir_even_where_it_is_damaged(tmp_path, name):
    workdir.claim(tmp_path, {"a": 1}, {})
    (tmp_path / name).mkdir(parents=True)
    with pytest.raises(ValueError, match="belongs to another run"):
        workdir.check(tmp_path, {"a": 2}, split)


def test_check_refuses_a_file_and_checkpoints_without_a_config(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; give a directory"):
        workdir.check(tmp_path / "file", {}, split)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match=r"holds checkpoints but no config\.json"):
        workdir.check(tmp_path, {}, split)


def test_hold_keeps_a_second_process_out_until_the_first_ends(tmp_path, root_dir):
    code = (
        "import pathlib, sys; from jaxtrain import workdir\n"
        "with workdir.hold(pathlib.Path(sys.argv[1])): print('held')"
    )

    def second():
        return subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            capture_output=True, text=True, cwd=root_dir,
        )  # fmt: skip

    with workdir.hold(tmp_path):
        assert "is in use by another running process" in second().stderr
    assert second().stdout == "held\n"


def test_config_hash_does_not_depend_on_the_order_of_keys():
    assert workdir.config_hash({"a": 1, "b": 2}) == workdir.config_hash({"b": 2, "a": 1})
    assert workdir.config_hash({"a": 1}) != workdir.config_hash({"a": 2})
