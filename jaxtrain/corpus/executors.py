"""Where the work of a corpus runs: processes of this machine, or tasks on a Ray cluster.

Both give `map` and nothing else: a top-level function of each of many small items, results in the
order of items. What is done with an item must depend on nothing else, so that either executor, any
number of workers and any order of events give the same result.
"""

import contextlib
import linecache
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")

LOCAL = "local"
RAY = "ray"
_PACKAGE = str(pathlib.Path(__file__).parents[1])
_IN_FLIGHT_PER_WORKER = 2  # Ray tasks submitted ahead, so that no worker waits for the driver
# One process a core: libraries that start a thread per core on their own would only contend.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def open_executor(kind: str, num_workers: int | None) -> "Iterator[LocalExecutor | RayExecutor]":
    """The executor of a name, its workers ended when the block ends.

    Args:
      num_workers: None is all cores: of this machine, or of the Ray cluster.

    Raises:
      ValueError: where Ray is asked for and not installed.
    """
    executor = RayExecutor(num_workers) if kind == RAY else LocalExecutor(num_workers)
    try:
        yield executor
    finally:
        executor.close()


class _Failure(NamedTuple):
    """An exception on its way from a worker: as text, since not every exception can be pickled."""

    message: str
    trace: str


class _RemoteTraceback(Exception):
    """The traceback of a worker; shown as the cause of what is raised here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class LocalExecutor:
    """Worker processes of this machine, started afresh (spawn), each with one item at a time.

    With one worker the work is done in this very process. A worker that dies ends the work with
    an error that names its item, and workers end when this process does, however it ends.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self.num_workers = num_workers or num_cores()
        self._workers: list[_Worker] = []

    def map(self, function: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
        """`function` of each item, in order; the first failure ends it with a RuntimeError."""
        if self.num_workers == 1:
            return (_unwrap(_call(function, item)) for item in items)
        return self._map(function, enumerate(items))

    def _map(self, function: Callable[[In], Out], items: Iterator[tuple[int, In]]) -> Iterator[Out]:
        workers, self._workers = self._workers, []  # a second map meanwhile takes others
        workers += [_Worker() for _ in range(self.num_workers - len(workers))]
        idle, busy = list(workers), {}
        results: dict[int, Out] = {}
        next_out = 0
        try:
            while True:
                while idle and (entry := next(items, None)) is not None:
                    worker = idle.pop()
                    busy[worker.connection] = (worker, *entry)
                    worker.send(function, entry[1])
                if not busy:
                    break
                for connection in multiprocessing.connection.wait(list(busy)):
                    worker, number, item = busy.pop(connection)
                    results[number] = _unwrap(worker.receive(item))
                    idle.append(worker)
                while next_out in results:
                    yield results.pop(next_out)
                    next_out += 1
            self._workers, workers = workers, self._workers
        finally:  # after an error, or left by the caller: what they do is not wanted any more
            _end(workers)

    def close(self) -> None:
        """Ends the workers at once; results that are not yet returned are lost."""
        _end(self._workers)
        self._workers = []


class _Worker:
    """One process and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _environment(_ONE_THREAD):
            self._process.start()
        theirs.close()  # so that the pipe ends when the process does

    def send(self, function: Callable[[Any], Any], item: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has died: `receive` says so
            self.connection.send_bytes(pickle.dumps((function, item)))

    def receive(self, item: Any) -> Any:
        try:
            answer = pickle.loads(self.connection.recv_bytes())
            return answer if isinstance(answer, _Failure) else pickle.loads(answer)
        except (EOFError, ConnectionResetError):
            self._process.join()
            raise RuntimeError(
                f"{item}: the worker process died ({_why(self._process.exitcode)}); start again "
                "to go on from the last chunk that was done"
            ) from None

    def end(self) -> None:
        self._process.terminate()
        self._process.join()
        self.connection.close()


def _end(workers: Iterable[_Worker]) -> None:
    for worker in workers:
        worker.end()


def _why(exit_code: int | None) -> str:
    if exit_code == -signal.SIGKILL:
        return "killed, as the kernel does when memory is short: take fewer workers"
    if exit_code is not None and exit_code < 0:
        return f"signal {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"


def _serve(connection: multiprocessing.connection.Connection) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(pickle.dumps(_call(_answer, message)))


def _answer(message: bytes) -> bytes:
    function, item = pickle.loads(message)
    return pickle.dumps(function(item))  # here, so that what cannot be pickled is a failure too


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


class RayExecutor:
    """Tasks on the Ray cluster that RAY_ADDRESS names, or on one started on this machine.

    Files are exchanged through the workdir, which all nodes have to see. A task whose node is lost
    is run again by Ray.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        try:
            import ray
            from ray.exceptions import RayError
        except ImportError as error:
            raise ValueError(
                "config.executor='ray' needs Ray; install it with pip install 'jaxtrain[ray]', or "
                f"take executor='{LOCAL}'"
            ) from error
        self._ray, self._error = ray, RayError
        self._started = not ray.is_initialized()
        if self._started:
            given: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
            given["runtime_env"] = {"env_vars": {**_ONE_THREAD, "PYTHONPATH": _own_path()}}
            if not os.environ.get("RAY_ADDRESS"):
                given |= {"address": "local", "num_cpus": num_workers or num_cores()}
                given |= {"include_dashboard": False}
            ray.init(**given)
        self.num_workers = num_workers or int(ray.cluster_resources().get("CPU", 1))

    def map(self, function: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
        """`function` of each item, in order; the first failure ends it with a RuntimeError."""
        call = self._ray.remote(num_cpus=1)(_call)
        numbered = enumerate(items)
        in_flight: dict[Any, tuple[int, In]] = {}
        results: dict[int, Out] = {}
        next_out = 0
        try:
            while True:
                while len(in_flight) < _IN_FLIGHT_PER_WORKER * self.num_workers:
                    if (entry := next(numbered, None)) is None:
                        break
                    in_flight[call.remote(function, entry[1])] = entry
                if not in_flight:
                    return
                (done,), _ = self._ray.wait(list(in_flight), num_returns=1)
                number, item = in_flight.pop(done)
                results[number] = self._result(done, item)
                while next_out in results:
                    yield results.pop(next_out)
                    next_out += 1
        finally:
            for task in in_flight:
                self._ray.cancel(task, force=True)

    def _result(self, task: Any, item: Any) -> Any:
        try:
            return _unwrap(self._ray.get(task))
        except self._error as error:
            reason = str(error).strip().splitlines()[0]
            raise RuntimeError(
                f"{item}: the Ray task died ({reason}); start again to go on from the last chunk "
                "that was done"
            ) from error

    def close(self) -> None:
        """Leaves the cluster; ends it where it was started here."""
        if self._started:
            self._ray.shutdown()


def _own_path() -> str:
    """Where modules are looked for beside the interpreter's own: a user's steps lie there."""
    own = [os.path.abspath(path) for path in sys.path]
    prefixes = (sys.prefix, sys.base_prefix)
    return os.pathsep.join(path for path in own if not path.startswith(prefixes))


def _call(function: Callable[[Any], Any], item: Any) -> Any:
    """The result, or what went wrong in words."""
    try:
        return function(item)
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        return _Failure(in_words(error), trace)


def _unwrap(result: Any) -> Any:
    if isinstance(result, _Failure):
        raise RuntimeError(result.message) from _RemoteTraceback(result.trace)
    return result


def in_words(error: BaseException) -> str:
    """One line for an error: its text where this package raised it, else type and place too."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    raised_here = frame.filename.startswith(_PACKAGE) and (frame.line or "").startswith("raise")
    if raised_here or (isinstance(error, OSError) and error.filename is not None):
        return str(error)
    linecache.checkcache(frame.filename)
    place = f"{pathlib.Path(frame.filename).name}:{frame.lineno}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} (at {place}; JAXTRAIN_TRACEBACK=1 shows all of it)"
