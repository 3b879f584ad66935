import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_decoder
import pytest
from flax import nnx

from jaxtrain import measured
from jaxtrain.measured import Total
from jaxtrain.models import attention
from jaxtrain.models import decoder as decoder_lib
from jaxtrain.models.block import Block
from jaxtrain.models.config import SAVEABLE, ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import read_measured, split
from jaxtrain.precision.recipe import get_recipe

SMALL = ModelConfig(
    vocab_size=40,
    num_layers=3,
    d_model=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    d_ff=24,
    attention_block=4,
)
PATTERN = dataclasses.replace(
    SMALL, num_layers=4, window=3, global_every=2, dropout=0.3, attention_block=16
)
IDS_BT = jnp.asarray(np.random.default_rng(0).integers(0, 40, (2, 12)), jnp.int32)
POSITIONS_BT = jnp.asarray(np.broadcast_to(np.arange(12), (2, 12)), jnp.int32)
# Three documents and two fillers; the second document is the one that tests change.
SEGMENTS_BT = np.array([[1] * 4 + [2] * 3 + [3] * 3 + [0] * 2], np.int32)
RESTARTING_BT = np.array([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 0, 0]], np.int32)


def replaced(config, **changes):
    return dataclasses.replace(config, **changes)


@functools.cache
def parts(config, recipe="float32", platform=None):
    def make():
        return Decoder(config, rngs=nnx.Rngs(0), recipe=get_recipe(recipe), platform=platform)

    return split(nnx.eval_shape(make))


@functools.cache
def params(config):
    """Random everywhere, norm scales and biases too, so that no parameter is without effect."""
    rng = np.random.default_rng(1)

    def draw(path, leaf):
        mean = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(rng.normal(mean, 0.3, leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, parts(config).params)


@functools.cache
def forward(config, recipe="float32"):
    """Jitted (params, inputs, positions, segment ids or None, rng or None) -> logits."""
    bind = parts(config, recipe).bind
    return jax.jit(lambda params, *args: bind(params, {})(*args))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_bias": "all", "ffn_bias": True, "tied_head": True, "scan_unroll": 1},
        {"qk_norm": "head", "activation": "geglu", "attention_softcap": 2.0, "logit_softcap": 3.0},
        {"qk_norm": "all", "norm_placement": "post", "rope_frac": 0.5, "attention_scale": 0.7},
        {
            "norm_placement": "both",
            "norm_offset": True,
            "scale_embedding": True,
            "window": 3,
            "global_layers": (0,),
            "rope_local_base": 50.0,
            "vocab_multiple": 64,
        },
        {"activation": "relu2", "attention_bias": "qkv", "ffn_bias": True, "num_kv_heads": 4},
        {"num_layers": 5, "window": 3, "global_every": 2, "scan_unroll": 1},
        {"bidirectional": True, "window": 5, "rope_scaling": "linear", "rope_factor": 2.0},
    ],
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_logits_are_those_of_float64_numpy(changes):
    config = replaced(SMALL, **changes)
    logits_BTV = forward(config)(params(config), IDS_BT, POSITIONS_BT)
    assert logits_BTV.dtype == jnp.float32
    for row in range(2):
        expected = numpy_decoder.logits(params(config), config, IDS_BT[row])
        np.testing.assert_allclose(logits_BTV[row], expected, atol=2e-5)


def test_llama3_scaling_reaches_the_logits():
    stretched = replaced(SMALL, rope_scaling="llama3", rope_factor=8.0, rope_original_len=16)
    plain = forward(SMALL)(params(SMALL), IDS_BT, POSITIONS_BT)
    other = forward(stretched)(params(SMALL), IDS_BT, POSITIONS_BT)
    assert float(jnp.abs(plain - other).max()) > 1e-2


# ------------------------------------------------------------------------------ stacked layers


@functools.cache
def loss_and_grads(config):
    bind = parts(config).bind

    @jax.jit
    def value_and_grad(params):
        rng = jax.random.key(3)

        def loss(p):
            return jnp.sum(jnp.square(bind(p, {})(IDS_BT, POSITIONS_BT, None, rng)))

        return jax.value_and_grad(loss)(params)

    return value_and_grad(params(PATTERN))


@pytest.mark.parametrize(
    "changes",
    [
        {"scan_unroll": 1},
        {"scan_unroll": 1, "remat": "full"},
        {"scan_unroll": 1, "remat": "save:query,attention_out,ffn_up"},
        {"scan_unroll": 9, "remat": "dots"},
    ],
    ids=str,
)
def test_scan_and_remat_change_neither_loss_nor_gradients(changes):
    """To rounding; dropout masks included, which a layer's key decides and not how it is run."""
    unrolled = loss_and_grads(replaced(PATTERN, scan_unroll=9))
    loss, grads = loss_and_grads(replaced(PATTERN, **changes))
    np.testing.assert_allclose(loss, unrolled[0], rtol=1e-5)

    def close(got, expected):
        np.testing.assert_allclose(got, expected, atol=2e-5 * float(jnp.abs(expected).max()))

    jax.tree.map(close, grads, unrolled[1])


def residual_shapes(remat):
    """Shapes of what the forward pass of a scanned model keeps for the backward pass."""
    config = replaced(SMALL, scan_unroll=1, remat=remat)
    bind = parts(config).bind

    def apply(p):
        return bind(p, {})(IDS_BT, POSITIONS_BT)

    kept = jax.eval_shape(lambda p: jax.vjp(apply, p)[1], parts(config).params)
    return {leaf.shape for leaf in jax.tree.leaves(kept)}


def test_remat_keeps_what_its_name_says():
    query_LBTNH, up_LBTF, in_LBTD = (3, 2, 12, 4, 8), (3, 2, 12, 24), (3, 2, 12, 16)
    full, query = residual_shapes("full"), residual_shapes("save:query")
    assert {query_LBTNH, up_LBTF} <= residual_shapes("none")
    assert {query_LBTNH, up_LBTF} & full == set()
    assert in_LBTD in full
    assert query - full == {query_LBTNH}
    assert residual_shapes("save:ffn_up") - full == {up_LBTF}
    assert {query_LBTNH, up_LBTF} <= residual_shapes("dots")


def test_attention_output_can_be_saved_by_name():
    assert attention.SAVED_NAME in SAVEABLE


def scans(config, platform):
    """Lengths of the loops over layers that are traced for a platform."""
    bind = parts(config, platform=platform).bind

    def apply(p):
        return bind(p, {})(IDS_BT, POSITIONS_BT)

    equations = jax.make_jaxpr(apply)(parts(config).params).eqns
    return [e.params["length"] for e in equations if e.primitive.name == "scan"]


def test_few_layers_are_unrolled_on_a_cpu_only():
    assert scans(SMALL, "cpu") == []
    assert scans(SMALL, "gpu") == [3]
    assert scans(replaced(SMALL, num_layers=9), "cpu") == [9]
    assert scans(replaced(SMALL, scan_unroll=2), "cpu") == [3]
    assert scans(replaced(PATTERN, num_layers=5), "gpu") == [2]  # 2 turns of 2 layers, then one


# ------------------------------------------------------------------------------- initialisation


def test_every_layer_starts_from_a_key_of_its_own():
    config = replaced(SMALL, num_layers=4, d_model=64, d_ff=16)
    recipe = get_recipe("float32")
    initial = jax.jit(lambda: split(Decoder(config, rngs=nnx.Rngs(0), recipe=recipe)).params)
    stacked = initial()["blocks"]
    w_LDF = np.asarray(stacked["ffn"]["w_up_DF"]).reshape(4, -1)
    correlation = np.corrcoef(w_LDF)
    assert np.abs(correlation - np.eye(4)).max() < 0.2

    # As many parameters and the same spread as blocks made one by one.
    def make(rng):
        return Block(config, rngs=nnx.Rngs(rng), recipe=recipe, constrain=lambda x, _: x)

    one = jax.jit(lambda rng: split(make(rng)).params)
    singles = [one(rng) for rng in jax.random.split(jax.random.key(5), 4)]

    def compare(stack, *layers):
        assert stack.shape == (4, *layers[0].shape)
        assert np.std(stack) == pytest.approx(np.std(layers), rel=0.05)

    jax.tree.map(compare, stacked, *singles)


@pytest.mark.parametrize("tied_head", [False, True])
def test_initial_logits_have_unit_variance(tied_head):
    """So the loss begins half a nat above that of guessing, log V."""
    config = replaced(SMALL, vocab_size=512, d_model=64, tied_head=tied_head)

    def make():
        return Decoder(config, rngs=nnx.Rngs(0), recipe=get_recipe("float32"))

    logits_BTV = jax.jit(lambda: make()(IDS_BT, POSITIONS_BT))()
    assert float(jnp.std(logits_BTV)) == pytest.approx(1, abs=0.1)


# -------------------------------------------------------------------------------------- dropout


def test_dropout_masks_differ_by_layer_and_by_step():
    """Each layer adds 1 / (1 - rate) where its mask keeps, and nothing else happens."""
    config = replaced(SMALL, num_layers=2, ffn_bias=True, dropout=0.5, scan_unroll=1)
    zeros = jax.tree.map(jnp.zeros_like, params(config))
    zeros["blocks"]["ffn"]["b_down_D"] += 1
    zeros["final_norm"]["scale"] += 1
    bind = parts(config).bind
    hidden = jax.jit(lambda rng: bind(zeros, {}).hidden(IDS_BT, POSITIONS_BT, None, rng))
    steps = [np.asarray(hidden(jax.random.key(step))) for step in range(2)]
    for h_BTD in steps:
        by_one_layer = h_BTD < 0.75 * h_BTD.max(-1, keepdims=True)
        assert 0.4 < np.mean(by_one_layer & (h_BTD > 0)) < 0.6  # one mask for both layers: 0
    assert np.mean((steps[0] > 0) != (steps[1] > 0)) > 0.2
    np.testing.assert_array_equal(hidden(jax.random.key(0)), steps[0])


def test_no_rng_means_no_dropout():
    dropping = replaced(SMALL, dropout=0.5)
    with_rate = forward(dropping)(params(SMALL), IDS_BT, POSITIONS_BT)
    np.testing.assert_array_equal(with_rate, forward(SMALL)(params(SMALL), IDS_BT, POSITIONS_BT))


# ------------------------------------------------------------------------------ packed documents

ISOLATED = [
    {"attention": "xla"},
    {"attention": "chunked"},
    {"attention": "chunked", "attention_block": 5, "window": 2, "scan_unroll": 1},
    {"attention": "xla", "bidirectional": True},
    {"attention": "chunked", "bidirectional": True},
]


@pytest.mark.parametrize("changes", ISOLATED, ids=str)
def test_a_document_changes_no_logit_of_another(changes):
    config = replaced(SMALL, **changes)
    ids_BT = IDS_BT[:1]
    changed_BT = np.where(SEGMENTS_BT == 2, (ids_BT + 7) % 40, ids_BT)
    before, after = (
        np.asarray(forward(config)(params(config), each, RESTARTING_BT, SEGMENTS_BT))
        for each in (ids_BT, changed_BT)
    )
    np.testing.assert_array_equal(before[SEGMENTS_BT != 2], after[SEGMENTS_BT != 2])
    assert np.all(np.abs(before - after)[SEGMENTS_BT == 2].max(-1) > 1e-3)


@pytest.mark.parametrize("changes", ISOLATED, ids=str)
def test_a_packed_document_has_the_logits_it_has_alone(changes):
    config = replaced(SMALL, **changes)
    logits_BTV = forward(config)(params(config), IDS_BT[:1], RESTARTING_BT, SEGMENTS_BT)
    assert np.all(np.isfinite(logits_BTV))
    for segment in (1, 2, 3):
        inside = segment == SEGMENTS_BT
        alone = numpy_decoder.logits(params(config), config, IDS_BT[:1][inside])
        np.testing.assert_allclose(np.asarray(logits_BTV)[inside], alone, atol=2e-5)


@pytest.mark.parametrize("implementation", ["xla", "chunked"])
def test_many_tiny_documents_in_a_row_lose_what_they_lose_alone(implementation):
    """64 documents of 2 tokens: kernels with a limit on segments per row went wrong here."""
    config = replaced(SMALL, attention=implementation, attention_block=32, vocab_size=140)
    documents = np.arange(5, 133, dtype=np.int32).reshape(64, 2)
    alone = np.mean(
        [
            numpy_decoder.nll_sum(numpy_decoder.logits(params(config), config, doc)[:1], doc[1:])
            for doc in documents
        ]
    )
    ids_BT = documents.reshape(1, 128)
    positions_BT = np.tile(np.arange(2, dtype=np.int32), 64)[None]
    segments_BT = np.repeat(np.arange(1, 65, dtype=np.int32), 2)[None]
    logits_BTV = forward(config)(params(config), ids_BT, positions_BT, segments_BT)
    logprobs = jax.nn.log_softmax(logits_BTV[0, ::2])
    packed = -np.mean(np.asarray(logprobs)[np.arange(64), documents[:, 1]])
    assert packed == pytest.approx(alone, abs=1e-4)


# ------------------------------------------------------------------------------- formats, errors


def test_bfloat16_computes_in_bfloat16_and_keeps_masters_and_logits_in_float32():
    config = SMALL
    bind = parts(config, "bfloat16").bind
    hidden = jax.eval_shape(lambda p: bind(p, {}).hidden(IDS_BT, POSITIONS_BT), params(config))
    assert hidden.dtype == jnp.bfloat16
    logits_BTV = forward(config, "bfloat16")(params(config), IDS_BT, POSITIONS_BT)
    assert logits_BTV.dtype == jnp.float32
    exact = np.asarray(forward(config)(params(config), IDS_BT, POSITIONS_BT))
    off = np.std(logits_BTV - exact) / np.std(exact)
    assert 1e-3 < off < 0.03  # some 30 roundings of up to 2⁻⁹ each; float32 would be 1e-6
    grads = jax.eval_shape(
        jax.grad(lambda p: jnp.sum(bind(p, {})(IDS_BT, POSITIONS_BT))), params(config)
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {np.dtype("float32")}


@pytest.mark.parametrize("outside", [40, -1])
def test_an_id_outside_the_vocabulary_is_no_other_token(outside):
    ids_BT = IDS_BT.at[1, 5].set(outside)
    logits_BTV = np.asarray(forward(SMALL)(params(SMALL), ids_BT, POSITIONS_BT))
    assert np.all(np.isnan(logits_BTV[1, 5:]))
    assert np.all(np.isfinite(logits_BTV[0]))


def test_demanded_attention_that_cannot_be_used_is_an_error():
    config = replaced(SMALL, attention="cudnn")
    with pytest.raises(ValueError, match="attention='cudnn' cannot be used"):
        forward(config)(params(SMALL), IDS_BT, POSITIONS_BT)


def test_embedding_and_logits_are_pinned_by_their_letters():
    seen = []

    def constrain(x, letters):
        seen.append((letters, x.shape))
        return x

    def call():
        model = Decoder(SMALL, rngs=nnx.Rngs(0), recipe=get_recipe("float32"), constrain=constrain)
        return model(IDS_BT, POSITIONS_BT)

    jax.eval_shape(call)
    assert seen[0] == ("BTD", (2, 12, 16))
    assert seen[-1] == ("BTV", (2, 12, 40))


class Watched(Block):
    """A block that measures what it gives."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.sum_D = Total(None, extent=(16,))

    def __call__(self, x_BTD, *args, **kwargs):
        out_BTD = super().__call__(x_BTD, *args, **kwargs)
        self.sum_D.note(jnp.sum(out_BTD, axis=(0, 1)))
        return out_BTD


# Turns of one layer, of two with one left over, and none.
@pytest.mark.parametrize("pattern", [{}, {"window": 3, "global_every": 2}, {"scan_unroll": 5}])
@pytest.mark.parametrize("remat", ["none", "full"])
def test_measures_of_stacked_layers_are_each_layers_own(monkeypatch, pattern, remat):
    monkeypatch.setattr(decoder_lib, "Block", Watched)
    config = replaced(SMALL, num_layers=5, scan_unroll=1, remat=remat)
    config = replaced(config, **pattern)

    def make():
        return Decoder(config, rngs=nnx.Rngs(0), recipe=get_recipe("float32"))

    made = split(nnx.eval_shape(make))
    assert made.measured["blocks"]["sum_D"].shape == (5, 16)

    @jax.jit
    def run(params):
        model = made.bind(params, {}, measured.zeros(made.measured))
        states = [model.embed(IDS_BT)]  # one layer after the other, by hand
        for layer in range(5):
            structure, state = nnx.split(model.blocks)
            block = nnx.merge(structure, jax.tree.map(lambda w, at=layer: w[at], state))
            states.append(
                block(
                    states[-1],
                    decoder_lib.rope.rotations(config, POSITIONS_BT).full,
                    None,
                    None,
                    window=config.layer_window(layer),
                    implementation="xla",
                )
            )
        model.hidden(IDS_BT, POSITIONS_BT)
        once = read_measured(model)["blocks"]["sum_D"]
        model.hidden(IDS_BT, POSITIONS_BT)
        return once, read_measured(model)["blocks"]["sum_D"], jnp.stack(states[1:])

    once, twice, states = run(params(config))
    np.testing.assert_allclose(once, states.sum((1, 2)), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-5)
