import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.hub.weights import Leaf, Part, Weight, copy

RNG = np.random.default_rng(0)
QKV = {"q": Leaf("LDNH", (2, 5, 3, 4)), "k": Leaf("LDKH", (2, 5, 1, 4))}


def test_rows_run_over_heads_and_within_them():
    weight = Weight("layers.{L}.q", "(N H) D", "q")
    assert list(weight.tensors(QKV)) == [("layers.0.q", (0,)), ("layers.1.q", (1,))]
    assert weight.shape(QKV) == (12, 5)
    tensor = RNG.standard_normal((12, 5))
    ours = weight.part_of(tensor, 0, QKV)
    assert ours.shape == (5, 3, 4)
    assert ours[2, 1, 3] == tensor[1 * 4 + 3, 2]


def test_layers_may_be_counted_from_another_number_than_0():
    weight = Weight("layers.{L+3}.experts.{E}", "F D", "w")
    leaves = {"w": Leaf("LEDF", (2, 2, 3, 4))}
    assert list(weight.tensors(leaves)) == [
        ("layers.3.experts.0", (0, 0)),
        ("layers.3.experts.1", (0, 1)),
        ("layers.4.experts.0", (1, 0)),
        ("layers.4.experts.1", (1, 1)),
    ]
    assert weight.shape(leaves) == (4, 3)


def test_fused_tensors_follow_each_other():
    weight = Weight("{L}.qk", "* D", Part("q", "N H"), Part("k", "K H"))
    assert weight.shape(QKV) == (16, 5)
    tensor = RNG.standard_normal((16, 5))
    ours = [weight.part_of(tensor, number, QKV) for number in range(2)]
    np.testing.assert_array_equal(ours[0], tensor[:12].T.reshape(5, 3, 4))
    np.testing.assert_array_equal(ours[1], tensor[12:].T.reshape(5, 1, 4))
    np.testing.assert_array_equal(weight.tensor_of(ours, QKV, np.float64), tensor)


def test_parts_within_each_head():
    """As DeepSeek's kv_b_proj: for each head first the keys' part, then the values'."""
    leaves = {"k": Leaf("RNH", (6, 3, 4)), "v": Leaf("RNH", (6, 3, 2))}
    weight = Weight("kv_b", "(N *) R", Part("k", "H"), Part("v", "H"))
    assert weight.shape(leaves) == (18, 6)
    tensor = RNG.standard_normal((18, 6))
    by_head = tensor.reshape(3, 6, 6)
    k, v = (weight.part_of(tensor, number, leaves) for number in range(2))
    np.testing.assert_array_equal(k[:, 1], by_head[1, :4].T)
    np.testing.assert_array_equal(v[:, 2], by_head[2, 4:].T)
    np.testing.assert_array_equal(weight.tensor_of([k, v], leaves, np.float64), tensor)


def test_interleaved_parts_and_experts():
    """As GPT-OSS: all experts in one tensor, gate and up in turns."""
    leaves = {name: Leaf("LEDF", (1, 2, 3, 4)) for name in ("gate", "up")}
    weight = Weight("{L}.gate_up", "E D (F *)", Part("gate", "1"), Part("up", "1"))
    assert weight.shape(leaves) == (2, 3, 8)
    tensor = RNG.standard_normal((2, 3, 8))
    parts = [weight.part_of(tensor, number, leaves) for number in range(2)]
    np.testing.assert_array_equal(parts[0], tensor[..., ::2])
    np.testing.assert_array_equal(parts[1], tensor[..., 1::2])
    np.testing.assert_array_equal(weight.tensor_of(parts, leaves, np.float64), tensor)


def test_one_tensor_for_each_expert_of_each_layer():
    weight = Weight("{L}.experts.{E}.up", "F D", "up")
    leaves = {"up": Leaf("LEDF", (2, 3, 4, 5))}
    names = [name for name, _ in weight.tensors(leaves)]
    assert names == [f"{layer}.experts.{expert}.up" for layer in range(2) for expert in range(3)]
    assert weight.shape(leaves) == (5, 4)
    assert weight.part_of(np.zeros((5, 4)), 0, leaves).shape == (4, 5)


SHAPES = st.tuples(*[st.sampled_from([1, 2, 63, 64, 65, 130])] * 2, st.sampled_from([1, 3]))


@given(SHAPES, st.permutations(range(3)), st.permutations(range(3)))
def test_copy_is_assignment_whatever_the_layout(shape, order_of_source, order_of_target):
    def laid_out(x, order):
        return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))

    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    source, target = laid_out(values, order_of_source), laid_out(values * 0 - 1, order_of_target)
    copy(target, source)
    np.testing.assert_array_equal(target, values)


def test_copy_changes_the_dtype():
    target = np.empty((70, 70), np.float32)
    source = np.arange(4900, dtype=np.float16).reshape(70, 70).T
    copy(target, source)
    np.testing.assert_array_equal(target, source.astype(np.float32))


def test_several_arrays_need_a_star():
    with pytest.raises(AssertionError):
        Weight("x", "F D", Part("a", "F"), Part("b", "F"))
