"""The engine's thread: refuses when full, tells of failure, ends when told to."""

import asyncio

import pytest

from jaxtrain.decode.sampling import Sampling
from jaxtrain.serving.answers import Ask
from jaxtrain.serving.worker import Busy, Worker

GREEDY = Sampling(temperature=0.0)


async def collect(worker, ask):
    return [piece async for piece in worker.answer(ask)]


def test_more_than_max_waiting_are_refused_and_the_rest_answered(text_model, text_engine):
    async def run(worker):
        asks = [collect(worker, Ask([5], 8, GREEDY, ignore_end=True)) for _ in range(5)]
        return await asyncio.gather(*asks, return_exceptions=True)

    worker = Worker(text_model, text_engine, max_waiting=3)
    found = asyncio.run(run(worker))
    worker.stop()
    assert sum(isinstance(each, Busy) for each in found) == 2
    answered = [each for each in found if isinstance(each, list)]
    assert [sum(len(piece.ids) for piece in each) for each in answered] == [8, 8, 8]


def test_a_request_that_the_engine_refuses_raises_its_reason(text_model, text_engine):
    worker = Worker(text_model, text_engine, max_waiting=3)
    with pytest.raises(ValueError, match="the prompt has 0 tokens"):
        asyncio.run(collect(worker, Ask([], 3)))
    assert worker.is_alive
    worker.stop()


def test_leaving_an_answer_cancels_it(text_model, text_engine):
    async def leave(worker):
        pieces = worker.answer(Ask([5], 60, GREEDY, ignore_end=True))
        await anext(pieces)
        await pieces.aclose()
        return await collect(worker, Ask([6], 2, GREEDY, ignore_end=True))

    worker = Worker(text_model, text_engine, max_waiting=1)
    assert sum(len(piece.ids) for piece in asyncio.run(leave(worker))) == 2
    worker.stop()
    assert not text_engine.is_busy


def test_a_failing_engine_is_told_to_all_who_wait(text_model, text_engine, monkeypatch):
    def fail():
        raise MemoryError("no room")

    monkeypatch.setattr(text_engine, "step", fail)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    worker = Worker(text_model, text_engine, max_waiting=9)

    async def run():
        first = await asyncio.gather(
            *(collect(worker, Ask([5], 3)) for _ in range(2)), return_exceptions=True
        )
        while worker.is_alive:
            await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="the engine has stopped"):
            await collect(worker, Ask([5], 3))
        return first

    found = asyncio.run(run())
    assert {type(each) for each in found} == {RuntimeError}
    assert any("the engine failed: MemoryError: no room" in str(each) for each in found)


def test_stopping_tells_those_who_wait(text_model, text_engine):
    async def run(worker):
        waiting = asyncio.ensure_future(collect(worker, Ask([5], 60, GREEDY, ignore_end=True)))
        await asyncio.sleep(0)
        await asyncio.to_thread(worker.stop)
        with pytest.raises(RuntimeError, match=r"shutting down|has stopped"):
            await waiting

    asyncio.run(run(Worker(text_model, text_engine, max_waiting=9)))
