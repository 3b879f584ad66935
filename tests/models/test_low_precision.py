import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtrain.models import low_precision
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.low_rank import LowRank
from jaxtrain.models.parameters import flatten, split
from jaxtrain.precision.quantization import Quantization
from jaxtrain.precision.quantized_weight import QuantizedWeight
from jaxtrain.precision.recipe import get_recipe

CONFIG = ModelConfig(
    vocab_size=64, num_layers=4, d_model=32, num_heads=2, num_kv_heads=1, head_dim=16, d_ff=64
)
WEIGHTS = {
    "attention.w_k_DKH", "attention.w_o_NHD", "attention.w_q_DNH", "attention.w_v_DKH",
    "ffn.w_down_FD", "ffn.w_gate_DF", "ffn.w_up_DF",
}  # fmt: skip
OUTER = ("layers.0.*", "layers.-1.*")
STOCHASTIC = Quantization(rounds_gradients_stochastically=True)


def decoder(
    how: Quantization | None, config: ModelConfig = CONFIG, recipe: str = "bfloat16"
) -> Decoder:
    quantized = dataclasses.replace(get_recipe(recipe), quantization=how)
    return Decoder(config, rngs=nnx.Rngs(0), recipe=quantized)


def hidden(model: Decoder) -> np.ndarray:
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 64, (2, 16)), jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(16, dtype=jnp.int32)[None], (2, 16))
    return np.asarray(nnx.jit(lambda model: model.hidden(ids, positions))(model), np.float32)


def test_weights_are_the_matrices_of_attention_and_feed_forward():
    assert set(low_precision.weight_names(decoder(None).blocks, Quantization(), CONFIG)) == WEIGHTS


EXPERTS = dataclasses.replace(
    CONFIG, num_experts=4, d_ff_expert=16, num_experts_per_token=2, num_shared_experts=1
)
SHARED = {"ffn.shared.w_down_FD", "ffn.shared.w_gate_DF", "ffn.shared.w_up_DF"}
ROUTED = {"ffn.w_down_EFD", "ffn.w_gate_EDF", "ffn.w_up_EDF"}


@pytest.mark.parametrize(
    ("scaling", "kind", "expected"),
    [
        ("current", "dense", SHARED | ROUTED),
        ("delayed", "dropless", SHARED | ROUTED),
        ("nvfp4", "capacity", SHARED | ROUTED),
        ("nvfp4", "dropless", SHARED),  # for which there is no kernel
    ],
)
def test_routed_experts_are_such_weights_and_the_router_is_none(scaling, kind, expected):
    config = dataclasses.replace(EXPERTS, expert_dispatch=kind)
    blocks = decoder(None, config).blocks
    names = low_precision.weight_names(blocks, Quantization(scaling), config)
    assert {name for name in names if name.startswith("ffn.")} == expected


def test_description_says_where_routed_experts_are_left_out():
    config = dataclasses.replace(EXPERTS, expert_dispatch="dropless")
    axes = flatten(split(nnx.eval_shape(lambda: decoder(None, config))).axes)
    lines = {}
    for scaling in ("current", "mxfp8"):
        how = Quantization(scaling, exclude=OUTER)
        recipe = dataclasses.replace(get_recipe("fp8"), quantization=how)
        lines[scaling] = low_precision.describe(recipe, config, axes)
    assert "for 20 of 40 matrices" in lines["current"]
    assert "always for embedding and head; float32" in lines["current"]
    assert "for 14 of 28 matrices" in lines["mxfp8"]
    assert (
        "always for embedding, head and routed experts (dropless, which has no kernel for mxfp8); "
        in lines["mxfp8"]
    )


def test_quantised_experts_with_low_rank_updates_are_refused():
    axes = flatten(split(nnx.eval_shape(lambda: decoder(None, EXPERTS))).axes)
    check = functools.partial(
        low_precision.check, config=EXPERTS, axes=axes, adapted=["blocks.ffn.w_up_EDF"]
    )
    with pytest.raises(
        ValueError, match=r"exclude must hold '\*\.ffn\.w_\*_E\*': low-rank updates"
    ):
        check(Quantization(exclude=OUTER))
    check(Quantization(exclude=(*OUTER, "*.ffn.w_*_E*")))


def test_low_rank_update_keeps_full_precision_over_a_quantised_base():
    blocks = decoder(None).blocks
    state = jax.tree.map(lambda w: w[0], nnx.state(blocks))
    path = ("attention", "w_q_DNH")
    flat = dict(nnx.to_flat_state(state))
    a, b = jnp.ones((32, 2)), jnp.ones((2, 2, 16))
    flat[path] = flat[path].replace(LowRank(flat[path].get_value(), a, b, 0.5))
    state = nnx.from_flat_state(flat.items())
    how = Quantization()
    names = low_precision.weight_names(blocks, how, CONFIG)
    found = low_precision.with_quantized(state, None, ["attention.w_q_DNH"], names, how)
    value = dict(nnx.to_flat_state(found))[path].get_value()
    assert isinstance(value, LowRank)
    assert isinstance(value.base, QuantizedWeight)
    assert value.a is a
    expected = np.asarray(flat[path].get_value().base) + 0.5 * 2
    np.testing.assert_allclose(value.astype(jnp.float32), expected, rtol=1e-6)


def test_model_without_excluded_layers_differs_from_one_with_and_both_from_bfloat16():
    found = [hidden(decoder(how)) for how in (None, Quantization(), Quantization(exclude=OUTER))]
    errors = [np.linalg.norm(each - found[0]) / np.linalg.norm(found[0]) for each in found[1:]]
    assert 0.002 < errors[1] < errors[0] < 0.1


def test_excluding_every_layer_is_bfloat16():
    config = dataclasses.replace(CONFIG, scan_unroll=1)
    excluded = decoder(Quantization(exclude=("layers.*",)), config)
    np.testing.assert_array_equal(hidden(excluded), hidden(decoder(None, config)))


def test_gradients_of_a_stack_in_parts_are_those_of_layers_one_by_one(monkeypatch):
    """A loop goes over its middle, and adds to gradients in which the outer layers have theirs."""
    monkeypatch.setattr(low_precision, "with_quantized", lambda state, rng, **_: state)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 64, (2, 16)), jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(16, dtype=jnp.int32)[None], (2, 16))

    def gradients(remat, unroll):
        config = dataclasses.replace(CONFIG, scan_unroll=unroll, remat=remat)
        structure, state = nnx.split(decoder(Quantization(exclude=OUTER), config, "float32"))

        @jax.jit
        def of(state):
            total = nnx.merge(structure, state).hidden(ids, positions)
            return jnp.sum(total**2)

        return flatten(nnx.to_pure_dict(jax.grad(of)(state)))

    expected = gradients("none", 4)
    for remat in ("none", "full"):
        for path, found in gradients(remat, 1).items():
            scale = np.abs(expected[path]).max()
            np.testing.assert_allclose(found, expected[path], atol=1e-5 * scale, err_msg=path)


def test_every_layer_and_weight_has_a_key_of_its_own_for_rounding():
    """And none of them is one of the two that the layer's dropout has."""
    blocks = decoder(None).blocks
    state = jax.tree.map(lambda w: w[0], nnx.state(blocks))
    names = low_precision.weight_names(blocks, STOCHASTIC, CONFIG)
    keys = []
    for layer in range(2):
        rng = jax.random.fold_in(jax.random.key(0), layer)
        keys += list(jax.random.split(rng))
        for how in (Quantization(), STOCHASTIC):
            found = low_precision.with_quantized(state, rng, names, names, how)
            values = [v.get_value() for _, v in nnx.to_flat_state(found)]
            drawn = [v.rng for v in values if isinstance(v, QuantizedWeight)]
            if how is STOCHASTIC:
                keys += drawn
            else:
                assert set(drawn) == {None}
    assert len(keys) == 2 * (2 + len(names))
    assert len({tuple(np.asarray(jax.random.key_data(key))) for key in keys}) == len(keys)
    without = low_precision.with_quantized(state, None, names, names, STOCHASTIC)  # evaluation
    values = [v.get_value() for _, v in nnx.to_flat_state(without)]
    assert {v.rng for v in values if isinstance(v, QuantizedWeight)} == {None}


def test_loop_over_layers_and_layers_one_by_one_quantise_alike():
    """Activations in float32: a value on another side of a rounding edge is then a rare thing."""
    looped, unrolled = (
        hidden(
            decoder(
                Quantization(exclude=OUTER),
                dataclasses.replace(CONFIG, scan_unroll=unroll),
                "float32",
            )
        )
        for unroll in (1, 4)
    )
    assert np.linalg.norm(looped - unrolled) < 2e-3 * np.linalg.norm(unrolled)
    assert np.median(np.abs(looped - unrolled)) < 1e-6


def test_description_counts_matrices_and_lists_what_is_left_out():
    how = Quantization("delayed", ("layers.0.*", "*.w_o_NHD"), emulate=True)
    recipe = dataclasses.replace(get_recipe("fp8"), quantization=how)
    axes = flatten(split(nnx.eval_shape(lambda: decoder(None))).axes)
    assert low_precision.describe(recipe, CONFIG, axes) == (
        "fp8 (delayed scaling, emulated where devices lack it) for 18 of 28 matrices of the "
        "blocks; bfloat16 for layers.0.*, *.w_o_NHD, and always for embedding and head; float32 "
        "for norms and router"
    )
    assert (
        low_precision.describe(get_recipe("float32"), CONFIG, axes) == "weight matmuls in float32"
    )


def test_patterns_may_fit_one_stack_of_several():
    experts = dataclasses.replace(
        CONFIG, num_experts=4, d_ff_expert=16, num_experts_per_token=2, num_dense_layers=1
    )
    axes = flatten(split(nnx.eval_shape(lambda: decoder(None, experts))).axes)
    low_precision.check(Quantization(exclude=("*.ffn.w_up_DF",)), experts, axes)
    with pytest.raises(ValueError, match=r"exclude: '\*\.ffn\.shared\.\*' fits none"):
        low_precision.check(Quantization(exclude=("*.ffn.shared.*",)), experts, axes)
