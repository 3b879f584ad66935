"""The engine in a thread of its own, asked from an event loop.

One thread owns the engine. It takes requests, steps while there is work, and hands pieces to the
loop that asked. A request that nobody waits for any more is cancelled and its slot is free.
"""

import asyncio
import dataclasses
import queue
import threading
from collections.abc import AsyncGenerator
from typing import NamedTuple

from jaxtrain.decode.engine import Emitted, Engine, NotFinite
from jaxtrain.serving.answers import Answer, Ask, Piece
from jaxtrain.serving.model import TextModel


class Busy(Exception):
    """More requests wait than are let in."""


class _Ticket(NamedTuple):
    """Where the pieces of one answer go."""

    ask: Ask
    loop: asyncio.AbstractEventLoop
    pieces: "asyncio.Queue[Piece | Exception]"

    def give(self, piece: Piece | Exception) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.pieces.put_nowait, piece)


@dataclasses.dataclass
class _Running:
    ticket: _Ticket
    answer: Answer


class Worker:
    """Args:
    max_waiting: requests that may be unfinished at a time; more are refused.
    """

    def __init__(self, model: TextModel, engine: Engine, max_waiting: int) -> None:
        self._model, self._engine, self._max_waiting = model, engine, max_waiting
        self._inbox: queue.Queue[tuple[str, _Ticket | None]] = queue.Queue()
        self._running: dict[int, _Running] = {}
        self._num_open = 0
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False once the engine has failed or was stopped."""
        return self._thread.is_alive()

    @property
    def num_drafted(self) -> tuple[int, int] | None:
        """`Engine.num_drafted`; None where there is no draft."""
        return self._engine.num_drafted if self._engine.has_draft else None

    async def answer(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        """The pieces of an answer; leaving the loop over them cancels it.

        Raises:
          Busy: where too many requests are unfinished.
          ValueError: where the engine refuses the request.
          RuntimeError: where the engine has failed.
        """
        if self._num_open >= self._max_waiting:
            raise Busy(f"{self._num_open} requests are unfinished; try again later")
        if not self.is_alive:
            raise RuntimeError("the engine has stopped")
        ticket = _Ticket(ask, asyncio.get_running_loop(), asyncio.Queue())
        self._num_open += 1
        self._inbox.put(("ask", ticket))
        is_done = False
        try:
            while not is_done:
                piece = await ticket.pieces.get()
                if isinstance(piece, Exception):
                    is_done = True
                    raise piece
                is_done = piece.finish is not None
                yield piece
        finally:
            self._num_open -= 1
            if not is_done:
                self._inbox.put(("cancel", ticket))

    def stop(self) -> None:
        """Ends the thread; answers that are not finished get an error."""
        self._inbox.put(("stop", None))
        self._thread.join()

    def _work(self) -> None:
        problem: Exception = RuntimeError("the server is shutting down")
        try:
            while self._take_messages():
                for emitted in self._engine.step():
                    self._hand_out(emitted)
        except Exception as error:
            problem = RuntimeError(f"the engine failed: {type(error).__name__}: {error}")
            raise
        finally:
            for running in self._running.values():
                running.ticket.give(problem)
            while not self._inbox.empty():
                _, ticket = self._inbox.get_nowait()
                if ticket is not None:
                    ticket.give(problem)

    def _take_messages(self) -> bool:
        """Everything that has come; waits where there is nothing to do. False: stop."""
        while True:
            try:
                kind, ticket = self._inbox.get(block=not self._engine.is_busy)
            except queue.Empty:
                return True
            if ticket is None:
                return False
            self._admit(ticket) if kind == "ask" else self._cancel(ticket)

    def _admit(self, ticket: _Ticket) -> None:
        try:
            answer = Answer(self._model, ticket.ask)
            number = self._engine.submit(answer.request)
        except ValueError as error:
            ticket.give(error)
            return
        self._running[number] = _Running(ticket, answer)

    def _cancel(self, ticket: _Ticket) -> None:
        for number, running in list(self._running.items()):
            if running.ticket is ticket:
                self._engine.cancel(number)
                del self._running[number]

    def _hand_out(self, emitted: Emitted) -> None:
        running = self._running.get(emitted.request)
        if running is None:
            return
        try:
            running.ticket.give(running.answer.take(emitted))
        except NotFinite as error:
            running.ticket.give(error)
            del self._running[emitted.request]
            return
        if running.answer.is_done:
            if emitted.finish is None:  # a stop string: the engine does not know
                self._engine.cancel(emitted.request)
            del self._running[emitted.request]
