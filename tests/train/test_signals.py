import os
import signal

import pytest

from jaxtrain.train.signals import Signals, StoppedBySignal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_answered_after_the_step(number):
    with Signals() as signals:
        assert signals.stop_at(1) == 0
        os.kill(os.getpid(), number)
        assert signals.stop_at(2) == number


def test_a_second_interrupt_is_not_waited_for():
    with Signals(), pytest.raises(KeyboardInterrupt):  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Signals():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_stopped_by_signal_says_which_and_when():
    assert str(StoppedBySignal(15, 7)) == "stopped by SIGTERM at step 7; saved"
