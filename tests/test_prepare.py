import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time

import pytest

from jaxtrain import files, prepare
from tests.corpora import texts, tree, write_lines


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
        config = f"--config={root_dir}/configs/corpus/code.py"
        given = (f"--workdir={tmp_path / workdir}", "--config.num_workers=1", *arguments)
        monkeypatch.setattr(sys, "argv", ["prepare", config, *given])
        prepare.main()
        return tmp_path / workdir

    return prepare_with


def _times(directory):
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*")}


def test_second_start_finds_the_corpus_done_and_touches_nothing(library, run, capsys):
    directory = run()
    before = _times(directory)
    printed = capsys.readouterr().out
    assert re.search(r"^in +40 documents", printed, re.MULTILINE)
    assert re.search(r"^out: train +\d+ documents", printed, re.MULTILINE)
    run()
    assert "already holds this corpus" in capsys.readouterr().out
    assert _times(directory) == before


def test_records_that_gave_no_document_are_counted_in_the_summary(library, run, capsys):
    (library / "empty.py").write_text("")
    run()
    assert "records that gave no document: 1 empty text\n" in capsys.readouterr().out
    run()
    assert "no document" not in capsys.readouterr().out


def test_other_settings_are_refused_with_the_difference_and_touch_nothing(library, run):
    directory = run()
    before = tree(directory)
    with pytest.raises(ValueError, match=r"config\.heldout_frac: 0\.05 -> 0\.2"):
        run("--config.heldout_frac=0.2")
    assert tree(directory) == before


def test_one_changed_byte_of_the_input_is_refused(library, run):
    run()
    (library / "m_7.py").write_text("def f():\n    return 8\n")
    with pytest.raises(ValueError, match=r"made_from\.inputs\.stdlib:\.sha256"):
        run()


def test_card_names_the_same_content_in_every_directory(library, run):
    assert tree(run(workdir="one")) == tree(run(workdir="two"))


def test_json_prints_the_card_as_the_last_line(library, run, capsys):
    directory = run("--json")
    card = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert card == files.read_json(directory / "card.json")


def test_handlers_of_signals_are_as_before(library, run):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    run()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def _command(root_dir, *arguments):
    return [
        *(sys.executable, "-m", "jaxtrain.prepare"),
        *(f"--config={root_dir / 'configs/corpus/code.py'}", *map(str, arguments)),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.heldout_frac=2"], "config.heldout_frac=2.0 must lie between 0 and 1; 0.05 is"),
        (["--config.steps=normalise"], "config.steps: 'normalise' is no step; did you mean n"),
        (["--config.inputs=nowhere/*.txt"], "config.inputs: nowhere/*.txt matches no file"),
        (["--config.inputs="], "config.inputs is empty"),
    ],
)
def test_wrong_setting_is_one_line_and_leaves_no_workdir(root_dir, tmp_path, arguments, message):
    done = subprocess.run(
        _command(root_dir, f"--workdir={tmp_path / 'corpus'}", *arguments),
        cwd=root_dir,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {message}")
    assert not (tmp_path / "corpus").exists()


def test_help_documents_every_knob(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["prepare", "--help"])
    with pytest.raises(SystemExit, match="0"):
        prepare.main()
    shown = capsys.readouterr().out
    for knob in (
        "inputs:",
        "reading.malformed:",
        "normalize.form:",
        "drop_near_duplicates.thresho",
    ):
        assert f"\n  {knob}" in shown


SLOW_STEP = """
import time
from jaxtrain.corpus.step import Outcome

def slow(batch):
    time.sleep(0.02 * len(batch))
    return [Outcome(document) for document in batch]
"""


@pytest.fixture(scope="module")
def slow_run(tmp_path_factory, root_dir):
    """Starts a run of some seconds on two workers; returns the process."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow_steps.py").write_text(SLOW_STEP)
    records = [{"id": str(i), "text": text} for i, text in enumerate(texts(120))]
    for i in range(3):
        write_lines(folder / f"{i}.jsonl", records[i::3])

    def start(workdir, num_workers=2):
        arguments = (
            f"--config.inputs={folder}/*.jsonl",
            "--config.steps=slow_steps:slow,drop_exact_duplicates",
            "--config.chunk_bytes=3000",
            f"--config.num_workers={num_workers}",
            f"--workdir={workdir}",
        )
        path = os.pathsep.join([str(root_dir), str(folder)])
        return subprocess.Popen(
            _command(root_dir, *arguments),
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


@pytest.fixture(scope="module")
def whole(slow_run, tmp_path_factory):
    """What the slow run leaves when it is let be."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    assert slow_run(workdir, num_workers=1).wait() == 0
    return tree(workdir)


def _wait_for_chunks(workdir, num, process):
    while len(list((workdir / "work" / "0").glob("*-*.json"))) < num:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_stopped_run_goes_on_and_comes_to_the_same(slow_run, whole, tmp_path, number):
    process = slow_run(tmp_path / "run")
    _wait_for_chunks(tmp_path / "run", 2, process)
    process.send_signal(number)
    printed = process.communicate()[0]
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert printed.endswith("stopped; start again with the same --workdir to go on\n")
    assert not (tmp_path / "run" / "card.json").exists()
    again = slow_run(tmp_path / "run")
    printed = again.communicate()[0]
    assert again.returncode == 0, printed
    assert "going on with what" in printed
    assert tree(tmp_path / "run") == whole


def test_diff_prints_what_differs_between_two_corpora(library, run, capsys, tmp_path, monkeypatch):
    one = run(workdir="one")
    two = run("--config.heldout_frac=0.5", workdir="two")
    monkeypatch.setattr(sys, "argv", ["prepare", "--diff", str(one), str(two)])
    capsys.readouterr()
    prepare.main()
    printed = capsys.readouterr().out
    assert "made_from.config.heldout_frac: 0.05 -> 0.5" in printed
    assert "train → heldout" in printed
    monkeypatch.setattr(sys, "argv", ["prepare", "--diff", str(one), str(two), "--json"])
    prepare.main()
    *moved, difference = map(json.loads, capsys.readouterr().out.splitlines())
    counts = json.loads(json.dumps(difference["documents"]))
    assert len(moved) == counts["written to another output"] > 0
    assert {(move["was"], move["now"]) for move in moved} == {("train", "heldout")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--diff", "nowhere", "nowhere"], "nowhere holds no whole corpus (card.json is missing)"),
        (["--diff", "nowhere"], "argument --diff: expected 2 arguments"),
        (["--diff", "a", "b", "--workdir=c"], "unrecognized arguments: --workdir=c"),
    ],
)
def test_diff_that_cannot_be_is_one_error(root_dir, tmp_path, arguments, message):
    done = subprocess.run(
        [sys.executable, "-m", "jaxtrain.prepare", *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root_dir)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert f"error: {message}" in done.stderr
    assert "Traceback" not in done.stderr
