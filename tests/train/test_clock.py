import pytest

from jaxtrain.train import clock as clock_lib
from jaxtrain.train.clock import Clock, memory


@pytest.fixture
def at(monkeypatch):
    """Sets the time that the clock reads."""
    now = [0.0]
    monkeypatch.setattr(clock_lib.time, "perf_counter", lambda: now[0])

    def set_time(value):
        now[0] = value

    return set_time


def test_rates_leave_out_the_first_step_and_what_is_no_step(at):
    clock = Clock()
    clock.expect_compilation()
    for now in (10.0, 11.0, 12.0):  # the first step compiled for 10 s
        at(now)
        clock.tick()
    at(50.0)  # an evaluation
    clock.restart()
    at(51.0)
    clock.tick()
    rates = clock.rates(tokens=400, batch_tokens=100)
    assert rates["step_secs"] == 1.0
    assert rates["tokens_per_sec"] == 100.0


def test_rates_after_a_new_batch_size_leave_its_compilation_out(at):
    clock = Clock()
    for now in (1.0, 2.0):
        at(now)
        clock.tick()
    clock.expect_compilation()
    for now in (30.0, 31.0):
        at(now)
        clock.tick()
    assert clock.rates(tokens=40, batch_tokens=10)["step_secs"] == 1.0


def test_a_report_of_the_first_step_alone_has_its_whole_time(at):
    clock = Clock()
    at(9.0)
    clock.tick()
    assert clock.rates(tokens=90, batch_tokens=90)["tokens_per_sec"] == 10.0


def test_waiting_adds_up_the_time_batches_took(at):
    def batches():
        at(3.0)
        yield "a"
        at(5.0)
        yield "b"

    clock = Clock()
    for batch in clock.waiting(batches()):
        at(4.0 if batch == "a" else 5.0)
        clock.tick()
    assert clock.rates(tokens=2, batch_tokens=1)["data_wait_secs"] == pytest.approx((3 + 1) / 2)


def test_memory_of_cpu_devices_is_that_of_the_process():
    assert memory()["host_memory_bytes"] > 10_000_000
