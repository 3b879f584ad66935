import os
import pathlib
import re
import subprocess
import sys
import textwrap
import time

import pytest

from jaxtrain.corpus.executors import LOCAL, RAY, LocalExecutor, in_words, open_executor
from jaxtrain.corpus.inputs import stdlib

FUNCTIONS = """
import os, pathlib, signal, time

def square(x):
    return x * x

def late_first(x):
    time.sleep(0.3 if x == 0 else 0)
    return x, os.getpid()

def die(x):
    if x == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return x

def fail(x):
    if x == 5:
        raise KeyError("five")
    return x

def unpicklable(x):
    return lambda: x

def threads(x):
    return os.environ.get("OMP_NUM_THREADS")

def note_and_sleep(path):
    pathlib.Path(path).write_text(str(os.getpid()))
    time.sleep(60)
"""


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """Functions that worker processes can import."""
    name = "functions_for_workers"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__(name)


@pytest.fixture(scope="module")
def two_workers():
    with open_executor(LOCAL, 2) as executor:
        yield executor


def test_results_are_in_the_order_of_items_on_several_processes(functions, two_workers):
    results = list(two_workers.map(functions.late_first, range(20)))
    assert [x for x, _ in results] == list(range(20))
    pids = {pid for _, pid in results}
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_workers_are_kept_from_one_map_to_the_next(functions, two_workers):
    pids = [{pid for _, pid in two_workers.map(functions.late_first, range(9))} for _ in range(2)]
    assert pids[0] == pids[1]


def test_no_items_give_no_results(functions, two_workers):
    assert list(two_workers.map(functions.square, [])) == []


def test_items_are_taken_as_workers_become_free(functions, two_workers):
    taken = []
    results = two_workers.map(functions.square, (taken.append(i) or i for i in range(1000)))
    next(results)
    assert len(taken) < 100
    # Left with work on the way: the next one gets nothing of it.
    assert list(two_workers.map(functions.square, range(3))) == [0, 1, 4]
    results.close()


def test_one_worker_is_this_process(functions):
    with open_executor(LOCAL, 1) as executor:
        assert {pid for _, pid in executor.map(functions.late_first, range(3))} == {os.getpid()}


def test_worker_that_is_killed_is_an_error_that_names_its_item(functions, two_workers):
    with pytest.raises(RuntimeError, match=r"5: the worker process died \(killed, .*memory"):
        list(two_workers.map(functions.die, range(9)))
    assert list(two_workers.map(functions.square, range(5))) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_failure_is_one_line_with_the_place_and_carries_the_traceback(functions, num_workers):
    with (
        open_executor(LOCAL, num_workers) as executor,
        pytest.raises(RuntimeError, match=r"^KeyError: 'five' \(at functions_.*:18") as error,
    ):
        list(executor.map(functions.fail, range(9)))
    assert "\n" not in str(error.value)
    assert "in fail" in str(error.value.__cause__)


def test_result_that_cannot_be_sent_is_a_failure(functions, two_workers):
    with pytest.raises(RuntimeError, match="pickle"):
        list(two_workers.map(functions.unpicklable, range(2)))


def test_worker_uses_one_thread_for_its_arithmetic(functions, two_workers, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert set(two_workers.map(functions.threads, range(2))) == {"1"}
    assert "OMP_NUM_THREADS" not in os.environ


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait_for(condition, secs=30):
    for _ in range(secs * 20):
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_workers_end_when_their_parent_is_killed(functions, tmp_path, root_dir):
    notes = [tmp_path / "a", tmp_path / "b"]
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
            from functions_for_workers import note_and_sleep
            from jaxtrain.corpus.executors import LocalExecutor
            if __name__ == "__main__":
                list(LocalExecutor(2).map(note_and_sleep, {[str(note) for note in notes]}))
        """)
    )
    path = os.pathsep.join([str(root_dir), str(tmp_path)])
    parent = subprocess.Popen([sys.executable, str(script)], env=os.environ | {"PYTHONPATH": path})
    assert _wait_for(lambda: all(note.exists() and note.read_text() for note in notes))
    pids = [int(note.read_text()) for note in notes]
    assert all(map(_is_running, pids))
    parent.kill()
    parent.wait()
    assert _wait_for(lambda: not any(map(_is_running, pids)))


def test_default_is_a_worker_for_each_core_of_this_process():
    assert LocalExecutor().num_workers == len(os.sched_getaffinity(0))


def test_missing_ray_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(ValueError, match=r"pip install 'jaxtrain\[ray\]'"),
        open_executor(RAY, 1),
    ):
        pass


def test_error_of_this_package_is_its_own_text_and_another_names_type_and_place(tmp_path):
    with pytest.raises(ValueError, match="sources") as ours:
        stdlib._source_files(tmp_path)
    assert in_words(ours.value).startswith(f"{tmp_path} holds no Python sources")
    with pytest.raises(ValueError, match="invalid literal") as theirs:
        int("x")
    assert re.match(r"ValueError: invalid .* \(at test_executors\.py:\d+;", in_words(theirs.value))
    with pytest.raises(FileNotFoundError) as missing:
        pathlib.Path("nowhere").read_text()
    assert in_words(missing.value) == "[Errno 2] No such file or directory: 'nowhere'"


@pytest.mark.slow
def test_ray_maps_like_processes_and_tells_failures_alike(functions):
    pytest.importorskip("ray")
    with open_executor(RAY, 2) as executor:
        results = list(executor.map(functions.late_first, range(20)))
        assert [x for x, _ in results] == list(range(20))
        assert os.getpid() not in {pid for _, pid in results}
        with pytest.raises(RuntimeError, match=r"^KeyError: 'five' \(at functions_for_workers"):
            list(executor.map(functions.fail, range(9)))
