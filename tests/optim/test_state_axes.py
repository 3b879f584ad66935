import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtrain.optim.build import build
from jaxtrain.optim.config import OptimConfig
from jaxtrain.optim.groups import group_of
from jaxtrain.optim.state_axes import state_axes

OPTIMIZERS = ("adamw", "lion", "muon")


def transform_of(name, axes):
    return build(OptimConfig(name=name, lr=0.01), 100, axes, 1000).transform


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_moment_has_the_letters_of_its_parameter(name, params, axes):
    transform = transform_of(name, axes)
    state = transform.init(params)
    letters = state_axes(transform, params, axes)
    assert jax.tree.structure(letters) == jax.tree.structure(state)  # masked nodes too
    letters_of = dict(jax.tree_util.tree_leaves_with_path(axes))
    num_moments = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(letters):
        ends = [letters_of[path[-n:]] for n in (1, 2) if path[-n:] in letters_of]
        assert leaf == (ends[0] if ends else ""), jax.tree_util.keystr(path)
        num_moments += bool(ends)
    # adamw keeps two moments of 9 parameters, lion one; muon one of 4 matrices, two of the rest.
    assert num_moments == {"adamw": 18, "lion": 9, "muon": 4 + 2 * 5}[name]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_letters_fit_the_rank_of_every_leaf_of_an_abstract_state(name, params, axes):
    transform = transform_of(name, axes)
    abstract = jax.eval_shape(lambda: params)
    letters = state_axes(transform, abstract, axes)
    leaves = jax.tree.leaves(jax.eval_shape(transform.init, abstract))
    for leaf, text in zip(leaves, jax.tree.leaves(letters), strict=True):
        assert len(text) == leaf.ndim


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_update_is_the_same_when_state_is_sharded_by_its_letters(
    name, params, axes, grads_of_steps
):
    transform = transform_of(name, axes)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("fsdp", "tensor"))
    on_mesh = {"D": "fsdp", "N": "tensor", "F": "tensor", "V": "tensor"}

    def shardings(letters):
        return jax.tree.map(
            lambda text: NamedSharding(mesh, PartitionSpec(*map(on_mesh.get, text))), letters
        )

    def update(params, state, grads):
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state, grads = transform.init(params), grads_of_steps[0]
    expected = jax.jit(update)(params, state, grads)
    where = shardings(axes), shardings(state_axes(transform, params, axes))
    inputs = jax.device_put((params, state, grads), (*where, where[0]))
    sharded = jax.jit(update, out_shardings=where)(*inputs)
    moment = sharded[1][1].inner_states["muon"].inner_state.momentum if name == "muon" else None
    if moment is not None:
        assert moment["blocks"]["w_up"].sharding.spec == PartitionSpec(None, "fsdp", "tensor")
    # 2e-5: products are summed in another order, and Newton-Schulz amplifies small directions
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), sharded, expected
    )


def test_masked_parameters_stay_masked(params, axes):
    transform = transform_of("muon", axes)
    states = state_axes(transform, params, axes)[1].inner_states
    assert states["muon"].inner_state.momentum["embed"] == optax.MaskedNode()
    assert states["adam"].inner_state.mu["blocks"]["w_q"] == optax.MaskedNode()
    assert states["adam"].inner_state.count == ""
    assert jnp.ndim(transform.init(params)[1].inner_states["adam"].inner_state.count) == 0


@pytest.mark.parametrize(("name", "num_moments"), [("adamw", 2), ("lion", 1)])
def test_codes_of_moments_are_sharded_and_their_scales_are_whole(name, num_moments, params, axes):
    config = OptimConfig(name=name, lr=0.01, state_format="8bit")
    transform = build(config, 100, axes, 1000).transform
    state, letters = jax.eval_shape(transform.init, params), state_axes(transform, params, axes)
    found = [
        (leaf.dtype.name, text)
        for leaf, text in zip(jax.tree.leaves(state), jax.tree.leaves(letters), strict=True)
        if leaf.ndim
    ]
    is_matrix = [axes_ for axes_ in jax.tree.leaves(axes) if group_of(axes_) == "matrix"]
    codes = [text for dtype, text in found if dtype == "uint8"]
    assert sorted(codes) == sorted(is_matrix * num_moments)
    assert [text for _, text in found].count("") == len(codes)  # one array of scales each
