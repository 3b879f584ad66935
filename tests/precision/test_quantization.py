import jax.numpy as jnp
import numpy as np

from jaxtrain.precision.quantization import HISTORY_LEN, DelayedScaling, Part, Quantization

NAMES = ("attention.w_o_NHD", "attention.w_q_DNH", "ffn.w_up_DF")


def test_layers_are_excluded_from_either_end_and_weights_by_name():
    how = Quantization(exclude=("layers.0.*", "layers.-2.ffn.*", "*.w_o_NHD"))
    rest = frozenset(NAMES) - {"attention.w_o_NHD"}
    assert how.weights(NAMES, 0, 5) == frozenset()
    assert how.weights(NAMES, 1, 5) == how.weights(NAMES, 4, 5) == rest
    assert how.weights(NAMES, 3, 5) == rest - {"ffn.w_up_DF"}
    assert how.weights(NAMES, 10, 12) == how.weights(NAMES, 10, 12) == rest - {"ffn.w_up_DF"}


def test_nothing_is_excluded_without_patterns():
    assert Quantization().parts(NAMES, range(3), 3) == [Part(range(3), frozenset(NAMES))]


def test_parts_are_runs_of_layers_that_are_treated_alike():
    how = Quantization(exclude=("layers.0.*", "layers.-1.*"))
    nothing, everything = frozenset(), frozenset(NAMES)
    assert how.parts(NAMES, range(6), 6) == [
        Part(range(1), nothing), Part(range(1, 5), everything), Part(range(5, 6), nothing),
    ]  # fmt: skip
    # A stack that begins behind others counts on.
    assert how.parts(NAMES, range(2, 6), 6) == [
        Part(range(2, 5), everything), Part(range(5, 6), nothing),
    ]  # fmt: skip


def test_history_takes_the_new_in_front_and_forgets_the_oldest():
    scaling = DelayedScaling(len(NAMES))
    for update in range(HISTORY_LEN + 2):
        scaling.amax.set_value(jnp.full((len(NAMES), 3), float(update)))
        scaling.settle()
    expected = np.arange(HISTORY_LEN + 1, 1, -1)
    np.testing.assert_array_equal(scaling.history[...], np.broadcast_to(expected, (3, 3, 16)))
