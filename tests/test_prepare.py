import json
import subprocess
import sys
import sysconfig

import pytest

from jaxtrain import files, prepare

NAMES = ("train.jsonl", "heldout.jsonl", "card.json")


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A small standard library in place of the interpreter's."""
    folder = tmp_path / "library"
    folder.mkdir()
    for i in range(40):
        (folder / f"m_{i}.py").write_text(f"def f():\n    return {i}\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(folder))
    return folder


@pytest.fixture
def run(root_dir, tmp_path, monkeypatch):
    def prepare_with(*arguments, workdir="corpus"):
        config = f"--config={root_dir}/configs/corpus/stdlib.py"
        argv = ["prepare", config, f"--workdir={tmp_path / workdir}", *arguments]
        monkeypatch.setattr(sys, "argv", argv)
        prepare.main()
        return tmp_path / workdir

    return prepare_with


def test_second_start_finds_the_corpus_done_and_touches_nothing(library, run, capsys):
    directory = run()
    before = {name: (directory / name).stat().st_mtime_ns for name in NAMES}
    assert "out: train" in capsys.readouterr().out
    run()
    assert "already holds this corpus" in capsys.readouterr().out
    assert {name: (directory / name).stat().st_mtime_ns for name in NAMES} == before


def test_other_settings_are_refused_with_the_difference_and_touch_nothing(library, run):
    directory = run()
    before = {name: files.sha256(directory / name) for name in NAMES}
    with pytest.raises(ValueError, match=r"config\.heldout_frac: 0\.05 -> 0\.2"):
        run("--config.heldout_frac=0.2")
    assert {name: files.sha256(directory / name) for name in NAMES} == before


def test_one_changed_byte_of_the_input_is_refused(library, run):
    run()
    (library / "m_7.py").write_text("def f():\n    return 8\n")
    with pytest.raises(ValueError, match=r"made_from\.input_sha256"):
        run()


def test_interrupted_run_without_a_card_is_done_anew(library, run):
    directory = run()
    whole = {name: files.sha256(directory / name) for name in NAMES}
    (directory / "card.json").unlink()
    (directory / "heldout.jsonl").unlink()
    run()
    assert {name: files.sha256(directory / name) for name in NAMES} == whole


def test_card_names_the_same_content_in_every_directory(library, run):
    assert files.sha256(run(workdir="one") / "card.json") == files.sha256(
        run(workdir="two") / "card.json"
    )


def test_json_prints_the_card_as_the_last_line(library, run, capsys):
    directory = run("--json")
    card = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert card == files.read_json(directory / "card.json")


def test_wrong_setting_is_one_line_and_leaves_no_workdir(root_dir, tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "jaxtrain.prepare", "--config=configs/corpus/stdlib.py"),
            *(f"--workdir={tmp_path / 'corpus'}", "--config.heldout_frac=2"),
        ],
        cwd=root_dir,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr == "error: config.heldout_frac=2.0 must lie between 0 and 1; 0.05 is usual\n"
    assert not (tmp_path / "corpus").exists()
