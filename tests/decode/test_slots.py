"""The state of slots: rows at rest change nothing, a run ends when it is told to."""

import jax
import numpy as np

from jaxtrain.decode.engine import Request
from jaxtrain.decode.sampling import Sampling

GREEDY = Sampling(temperature=0.0)


def test_a_row_at_rest_writes_nothing(engine):
    engine.submit(Request([3, 1], 9, GREEDY))
    engine.step()
    entries = jax.tree.map(np.asarray, engine._state.cache)
    while engine.is_busy:
        engine.step()
    for before, after in zip(entries, engine._state.cache, strict=True):
        np.testing.assert_array_equal(before[0][1:], after[0][1:])
        assert not np.array_equal(before[0][0], after[0][0])


def test_a_run_ends_early_where_a_slot_gets_free_and_others_wait(engine):
    short = [engine.submit(Request([n], 1, GREEDY)) for n in range(3)]
    engine.submit(Request([9], 2, GREEDY))
    emitted = engine.step()
    assert [each.request for each in emitted] == short
    assert all(each.finish == "length" for each in emitted)
    assert engine.is_busy


def test_tokens_are_counted_on_the_device(engine):
    engine.submit(Request([3, 1, 4], 2, GREEDY))
    engine.step()
    assert int(engine._state.length_B[0]) == 5
    assert int(engine._state.num_new_B[0]) == 2
    assert not engine.is_busy
