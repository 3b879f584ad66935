"""Engines that tests share."""

from jaxtrain.decode.engine import Engine


def made_idle(engine: Engine) -> Engine:
    """The engine without whatever a test before has left in it."""
    for number in range(10_000):
        if not engine.is_busy:
            break
        engine.cancel(number)
    assert not engine.is_busy
    return engine
