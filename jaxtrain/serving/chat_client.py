"""Questions to a server that speaks the OpenAI API's chat completions, and its answers.

What passes (too many requests, a fault of the server, no or half an answer) is tried again, after
1, 2, 4 … seconds or as long as the server says. What does not pass is told apart: a refusal of one
question is its answer; one that says that key, address or model are wrong ends everything.

Only the standard library: a teacher elsewhere needs no accelerator here.
"""

import contextlib
import dataclasses
import http.client
import json
import queue
import random
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

_TRIES: Final = 6
_MAX_WAIT_SECS: Final = 60.0
_MAX_IN_ROW: Final = 16  # questions without an answer, after which nothing better is expected
_PASSING: Final = (408, 409, 425, 429)  # and all from 500 on
_OF_THE_QUESTION: Final = (400, 413, 422)  # and no other below 500
_MAX_TOLD: Final = 300  # characters of a server's message


@dataclasses.dataclass(frozen=True)
class Question:
    """A conversation up to where the assistant answers."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any] | None
    settings: Mapping[str, Any]  # further fields of the request: temperature, seed, …


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why there is no answer; `passes`: another try, later, may have one."""

    reason: str
    passes: bool


Answer = dict[str, Any]  # "message", "finish", "model", "usage", as the server says


class NotServed(ValueError):
    """The server is not what the flags say, or cannot be reached; asking on is in vain."""


class ChatServer:
    """One model of a server.

    Args:
      url: as clients know it, up to /v1.
      api_key: sent as a bearer token; None: none is.
      wait_secs: before the second try, each further one twice as long.
    """

    def __init__(
        self,
        url: str,
        model: str,
        api_key: str | None = None,
        *,
        timeout_secs: float = 600.0,
        wait_secs: float = 1.0,
    ) -> None:
        """Raises:
        ValueError: for an address that is none.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError(f"--server={url} must be an address such as http://127.0.0.1:8000/v1")
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "--server must not hold a password, as it is written beside every answer; put the "
                "key into an environment variable and name that with --api_key_env"
            )
        self.url, self.model = url.rstrip("/"), model
        self._timeout_secs, self._wait_secs = timeout_secs, wait_secs
        self._headers = {"Content-Type": "application/json", "User-Agent": "jaxtrain"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        # A redirect would take the key elsewhere, and turns a POST into a GET.
        self._opener = urllib.request.build_opener(_NoRedirects)

    def ask(self, question: Question, stopped: threading.Event) -> Answer | Failure:
        """The answer, after as many tries as it takes.

        Raises:
          NotServed: where the server says that it is not what the flags say.
        """
        body: dict[str, Any] = {"model": self.model, "messages": list(question.messages)}
        if question.tools is not None:
            body["tools"] = list(question.tools)
        content = json.dumps(body | dict(question.settings)).encode()
        wait_secs, failure = self._wait_secs, Failure("was not asked", True)
        for attempt in range(_TRIES):
            if attempt and stopped.wait(min(wait_secs, _MAX_WAIT_SECS)):
                break
            found, told_secs = self._try(content)
            if not isinstance(found, Failure) or not found.passes:
                return found
            failure = found
            backoff = self._wait_secs * 2**attempt * random.uniform(0.75, 1.25)
            wait_secs = max(told_secs, backoff)
        return failure

    def _try(self, content: bytes) -> tuple[Answer | Failure, float]:
        """(answer, seconds to wait if the server says so)."""
        place = f"{self.url}/chat/completions"
        request = urllib.request.Request(place, content, self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout_secs) as response:
                return _read(response.read()), 0.0
        except urllib.error.HTTPError as error:
            with error:
                told, secs = _told(error), _retry_after(error.headers.get("Retry-After"))
            if error.code in _PASSING or error.code >= 500:
                return Failure(told, True), secs
            if error.code in _OF_THE_QUESTION:
                return Failure(told, False), 0.0
            raise NotServed(f"{place} refuses model {self.model!r}: {told}") from error
        except (OSError, http.client.HTTPException) as error:  # timeouts and URLError are OSErrors
            reason = getattr(error, "reason", None) or error
            return Failure(f"no answer: {str(reason) or type(reason).__name__}", True), 0.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req, fp, code, msg, headers, newurl):
        return None


def ask_all(
    server: ChatServer, questions: Iterable[tuple[int, Question]], concurrency: int
) -> Iterator[tuple[int, Answer | Failure]]:
    """(number, answer) of each as it comes; `concurrency` questions are under way at a time.

    Leaving the iterator ends it without waiting for what is under way.

    Raises:
      NotServed: where the server is not what the flags say, where it answers none of many
        questions in a row, or refuses the first ones all.
    """
    waiting: queue.SimpleQueue[tuple[int, Question]] = queue.SimpleQueue()
    found: queue.SimpleQueue[tuple[int, Answer | Failure | Exception]] = queue.SimpleQueue()
    stopped = threading.Event()
    num_open = 0
    for numbered in questions:
        waiting.put(numbered)
        num_open += 1

    def work() -> None:
        while not stopped.is_set():
            try:
                number, question = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                found.put((number, server.ask(question, stopped)))
            except Exception as error:
                found.put((number, error))

    for _ in range(min(concurrency, num_open)):
        threading.Thread(target=work, daemon=True).start()
    patience = _Patience(max(_MAX_IN_ROW, concurrency))
    try:
        for _ in range(num_open):
            number, answer = found.get()
            if isinstance(answer, Exception):
                raise answer
            yield number, answer
            patience.judge(answer)
    finally:
        stopped.set()


class _Patience:
    """Gives up where nothing better is to be expected."""

    def __init__(self, limit: int) -> None:
        self._limit, self._in_row, self._any_answer = limit, 0, False

    def judge(self, answer: Answer | Failure) -> None:
        if not isinstance(answer, Failure):
            self._in_row, self._any_answer = 0, True
            return
        # Questions that are refused among others that are not may be many in a row.
        self._in_row += answer.passes or not self._any_answer
        if self._in_row >= self._limit:
            raise NotServed(
                f"{self._in_row} questions in a row got no answer: {answer.reason}; mend that and "
                "start again: answers that came are kept"
            )


def _read(content: bytes) -> Answer | Failure:
    try:
        body = json.loads(content)
        choice = body["choices"][0]
        message = choice["message"]
        text = message.get("content")
        if text is not None and not isinstance(text, str):
            raise TypeError(type(text).__name__)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return Failure(f"its answer is no chat completion: {error!r:.{_MAX_TOLD}}", True)
    return {
        "message": message,
        "finish": choice.get("finish_reason"),
        "model": body.get("model"),
        "usage": body.get("usage"),
    }


def _told(error: urllib.error.HTTPError) -> str:
    """The status with the server's own message."""
    try:
        content = error.read(10_000).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        content = ""
    with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
        content = json.loads(content)["error"]["message"]
    return f"{error.code} {error.reason}: {' '.join(str(content).split())[:_MAX_TOLD]}"


def _retry_after(text: str | None) -> float:
    """Seconds; a date, which the header may hold as well, is passed by."""
    try:
        secs = float(text or 0)
    except ValueError:
        return 0.0
    return secs if 0 <= secs < float("inf") else 0.0
