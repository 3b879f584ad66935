import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.losses import head as head_lib
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.parallel.sharding import Constrain
from tests.losses.given_states import GivenStates

B, T, D, V = 2, 5, 4, 7


def draw(softcap=None, num_columns=V):
    rng = np.random.default_rng(0)
    h, w = rng.normal(size=(B, T, D)), rng.normal(size=(D, num_columns))
    model = GivenStates(h, w, softcap, vocab_size=V)
    return head_lib.head_of(model, B), h, w


@pytest.mark.parametrize(("length", "num"), [(1, 1), (6, 3), (7, 3), (7, 1), (5, 5), (2, 4)])
def test_positions_split_and_joined_are_the_same(length, num):
    x = np.arange(B * length * D, dtype=np.float32).reshape(B, length, D) + 1
    chunks = head_lib.split_positions(num, x)
    assert chunks.shape[0] == num
    for j in range(num):
        own = x[:, j::num]
        np.testing.assert_array_equal(chunks[j, :, : own.shape[1]], own)
        assert not np.asarray(chunks[j, :, own.shape[1] :]).any()  # weight 0
    np.testing.assert_array_equal(head_lib.join_positions(chunks, length), x)


@pytest.mark.parametrize(
    ("chunk_tokens", "num_shards", "expected"),
    [(1, 1, 24), (8, 1, 24), (16, 1, 12), (40, 1, 5), (40, 4, 2), (10_000, 1, 1)],
)
def test_chunks_hold_the_given_tokens_of_each_device_and_one_position_at_least(
    chunk_tokens, num_shards, expected
):
    head, _, _ = draw()
    head = dataclasses.replace(head, num_shards=num_shards)
    assert head_lib.num_chunks(head, chunk_tokens, num_rows=8, length=24) == expected


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("num_columns", [V, V + 3])
def test_probabilities_and_targets_leave_padding_of_the_vocabulary_out(softcap, num_columns):
    head, h, w = draw(softcap, num_columns)
    logits = head.logits(jnp.asarray(h, jnp.float32), jnp.asarray(w, jnp.float32))
    norm = head.normalise(logits)
    expected = (h @ w)[..., :V]
    if softcap is not None:
        expected = softcap * np.tanh(expected / softcap)
    np.testing.assert_allclose(
        head_lib.lse(norm)[..., 0], np.log(np.exp(expected).sum(-1)), rtol=1e-6
    )
    p = np.asarray(norm.exp_BTV / norm.sum_BT1)
    np.testing.assert_allclose(p[..., :V].sum(-1), 1, rtol=1e-6)
    assert not p[..., V:].any()
    targets = np.array([[0, V - 1, V, -1, 3], [1, 2, 3, 4, 5]], np.int32)
    actual = np.asarray(head.target_logits(logits, jnp.asarray(targets)))[..., 0]
    outside = (targets < 0) | (targets >= V)
    np.testing.assert_array_equal(np.isnan(actual), outside)
    one_hot = np.eye(V)[np.where(outside, 0, targets)]
    np.testing.assert_allclose(actual[~outside], (expected * one_hot).sum(-1)[~outside], rtol=1e-5)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("num_shards", [1, 2])
def test_gradients_of_states_and_head_equal_those_of_autodiff(softcap, num_shards):
    head, h, w = draw(softcap)
    head = dataclasses.replace(head, num_shards=num_shards)
    h, w = jnp.asarray(h, jnp.float32), jnp.asarray(w, jnp.float32)
    d_BTV = jnp.asarray(np.random.default_rng(1).normal(size=(B, T, V)), jnp.float32)
    logits, pull = jax.vjp(head.logits, h, w)
    before_cap = head.uncap(logits, d_BTV)
    dhead = head.zero_d_head(w) + head.d_head(h, before_cap)
    assert dhead.shape == (num_shards, D, V)
    expected_dh, expected_dw = pull(d_BTV)
    np.testing.assert_allclose(head.d_hidden(before_cap, w, h.dtype), expected_dh, atol=1e-6)
    np.testing.assert_allclose(head.reduce_d_head(dhead, w.dtype), expected_dw, atol=1e-6)


def test_filler_states_are_zero_whatever_they_hold():
    h = jnp.full((1, 3, D), jnp.nan).at[0, 1].set(2.0)
    counted = head_lib.counted(h, jnp.asarray([[0.0, 0.5, 0.0]]))
    np.testing.assert_array_equal(counted[0, :, 0], [0, 2, 0])


@pytest.mark.parametrize(("num_rows", "num_shards"), [(8, 4), (6, 1)])
def test_rows_that_the_mesh_does_not_divide_are_one_shard(num_rows, num_shards):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    model = GivenStates(None, None, constrain=Constrain(mesh))
    assert head_lib.head_of(model, num_rows).num_shards == num_shards
