import dataclasses
import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.kernels import blocks
from jaxtrain.kernels.blocks import Block, FlashBlocks
from jaxtrain.kernels.flash_attention import Spec, attend, visited
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.planning import aot, hlo
from tests.models.filled import quick

SCALE = 0.4
#: Largest error of output and gradients against float64, of the largest value: sums of up to 700
#: terms in float32; beside them a few roundings of what goes in and out of products.
TOLERANCES = {jnp.float32: 2e-6, jnp.float16: 1.5e-3, jnp.bfloat16: 1e-2}
# Rows and columns differ, and each kernel has blocks of its own.
BLOCKS = FlashBlocks(Block(16, 8, 4, 2), Block(8, 16, 4, 2), Block(16, 8, 4, 2))
CAUSAL = Spec(True, None, None, SCALE, BLOCKS, interpret=True)

# name -> (length, query heads, k/v heads, documents per row or None, changes of the spec)
CASES = {
    "one token": (1, 2, 1, None, {}),
    "blocks exactly, as many k/v heads": (32, 2, 2, None, {}),
    "rest behind the last block, documents": (45, 4, 2, 4, {}),
    "window, documents": (45, 2, 1, 3, {"window": 11}),
    "window of one token": (20, 2, 1, None, {"window": 1}),
    "soft cap, three heads share": (37, 3, 1, 2, {"softcap": 1.5}),
    "bidirectional, documents": (45, 2, 1, 4, {"causal": False}),
    "bidirectional window": (45, 2, 1, None, {"causal": False, "window": 18}),
    "window, soft cap, documents": (45, 4, 2, 3, {"window": 11, "softcap": 1.5}),
    "the same, bidirectional": (45, 4, 2, 3, {"causal": False, "window": 11, "softcap": 1.5}),
    "64 documents of two tokens": (131, 2, 1, 65, {}),  # kernels had limits; one is filler
}


def segments(length, num_documents):
    """Documents in two rows; filler from within a block on in the first, and all over a third."""
    if num_documents is None:
        return None
    ids = np.arange(length) * num_documents // length + 1
    with_filler = np.where(np.arange(length) < length - 3, ids, 0)
    return np.stack([with_filler, ids, np.zeros_like(ids)]).astype(np.int32)


def draw(length, num_heads, num_kv_heads, head_dim=8, seed=0):
    rng = np.random.default_rng(seed)
    heads = (num_heads, num_kv_heads, num_kv_heads, num_heads)
    return [rng.normal(size=(3, length, n, head_dim)) for n in heads]  # q, k, v, do


def seen(length, segment_ids, spec):
    """Where each query sees each key: [rows or 1, T, S]."""
    t, s = np.arange(length)[:, None], np.arange(length)[None, :]
    keep = np.ones((1, length, length), bool)
    if spec.causal:
        keep = keep & (s <= t)
    if spec.window is not None:
        keep = keep & (abs(t - s) < spec.window)
    if segment_ids is not None:
        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        keep = keep & same & (segment_ids > 0)[:, :, None]
    return keep


def reference(q, k, v, do, segment_ids, spec, sinks=None):
    """Output, gradients of q, k, v and of sinks (else None), in float64 with all scores."""
    group = q.shape[2] // k.shape[2]
    wide_k, wide_v = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
    scores = np.einsum("btnh,bsnh->bnts", q, wide_k) * SCALE
    slope = np.ones_like(scores)
    if spec.softcap is not None:
        tanh = np.tanh(scores / spec.softcap)
        scores, slope = spec.softcap * tanh, 1 - tanh**2
    e = np.where(seen(q.shape[1], segment_ids, spec)[:, None], np.exp(scores), 0)
    sink = 0 if sinks is None else np.exp(sinks)[None, :, None, None]
    total = np.maximum(e.sum(-1, keepdims=True) + sink, 1e-300)
    p = e / total
    o = np.einsum("bnts,bsnh->btnh", p, wide_v)
    dp = np.einsum("btnh,bsnh->bnts", do, wide_v)
    back = (p * dp).sum(-1, keepdims=True)
    ds = p * (dp - back) * slope * SCALE

    def of_kv_heads(x):
        return x.reshape(*x.shape[:2], -1, group, x.shape[-1]).sum(3)

    dq = np.einsum("bnts,bsnh->btnh", ds, wide_k)
    dk = of_kv_heads(np.einsum("bnts,btnh->bsnh", ds, q))
    dv = of_kv_heads(np.einsum("bnts,btnh->bsnh", p, do))
    return o, dq, dk, dv, None if sinks is None else -(sink / total * back).sum((0, 2, 3))


@functools.partial(quick, static_argnums=0)
def output_and_gradients(spec, q, k, v, do, segment_ids, sinks=None):
    def of_inputs(q, k, v, sinks):
        return attend(spec, q, k, v, segment_ids, sinks)

    output, pull = jax.vjp(of_inputs, q, k, v, sinks)
    return output, *pull(do)


def max_error(actual, expected):
    """Largest difference, relative to the largest expected value."""
    return np.abs(np.asarray(actual, np.float64) - expected).max() / max(np.abs(expected).max(), 1)


@pytest.mark.parametrize("case", CASES)
def test_output_and_gradients_equal_float64_reference(case):
    length, num_heads, num_kv_heads, num_documents, changes = CASES[case]
    spec, segment_ids = dataclasses.replace(CAUSAL, **changes), segments(length, num_documents)
    arrays = draw(length, num_heads, num_kv_heads)
    expected = reference(*arrays, segment_ids, spec)
    actual = output_and_gradients(spec, *(jnp.asarray(x, jnp.float32) for x in arrays), segment_ids)
    for name, x, y in zip(("o", "dq", "dk", "dv"), actual, expected, strict=False):
        assert max_error(x, y) < TOLERANCES[jnp.float32], name
        if segment_ids is not None:  # filler: exactly nothing
            assert not np.asarray(x)[segment_ids == 0].any(), name


def test_sinks_take_their_share_of_the_softmax():
    segment_ids, sinks = segments(45, 3), np.array([-2.0, 0.5, 1.5, 4.0])
    arrays = draw(45, 4, 2)
    expected = reference(*arrays, segment_ids, CAUSAL, sinks)
    arrays = [jnp.asarray(x, jnp.float32) for x in arrays]
    actual = output_and_gradients(CAUSAL, *arrays, segment_ids, jnp.asarray(sinks, jnp.float32))
    for name, x, y in zip(("o", "dq", "dk", "dv", "dsink"), actual, expected, strict=True):
        assert max_error(x, y) < 3e-6, name
    assert np.abs(expected[4]).max() > 0.1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_near_the_reference_and_values_may_have_another_head_size(dtype):
    """Heads of 24 and of 8 numbers, neither a power of two nor equal, as in latent attention."""
    segment_ids = segments(37, 3)
    q, k, v, do = (jnp.asarray(x, dtype) for x in draw(37, 2, 1, head_dim=24))
    arrays = (q, k, v[..., :8], do[..., :8])
    expected = reference(*(np.asarray(x, np.float64) for x in arrays), segment_ids, CAUSAL)
    actual = output_and_gradients(CAUSAL, *arrays, segment_ids)
    for x, y, like in zip(actual, expected, (arrays[3], *arrays[:3]), strict=False):
        assert (x.dtype, x.shape) == (dtype, like.shape)
        assert max_error(x, y) < TOLERANCES[dtype]


@pytest.mark.parametrize(
    ("generation", "length"), [("hopper", 64), ("ampere", 128), ("ampere", 192), ("hopper", 704)]
)
def test_lengths_that_kernels_went_wrong_at_are_right_with_the_tables_blocks(generation, length):
    """PRE-13: finite gradients, nothing of a row of filler; a mask and bfloat16."""
    spec = dataclasses.replace(CAUSAL, blocks=blocks.FLASH_ATTENTION[generation][64])
    segment_ids = segments(length, 3)
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in draw(length, 2, 1)]
    expected = reference(*(np.asarray(x, np.float64) for x in arrays), segment_ids, spec)
    actual = output_and_gradients(spec, *arrays, segment_ids)
    for x, y in zip(actual[:4], expected[:4], strict=True):
        assert np.isfinite(np.asarray(x, np.float32)).all()
        assert not np.asarray(x)[segment_ids == 0].any()
        assert max_error(x, y) < TOLERANCES[jnp.bfloat16]


def test_scores_beyond_the_range_of_exp_are_right():
    """Scores up to some 10^4: the softmax is that of the largest ones alone."""
    q, k, v, do = draw(45, 2, 1)
    arrays = [np.float32(x).astype(np.float64) for x in (3e3 * q, k, v, do)]
    shifted = reference_of_large_scores(*arrays[:3], segments(45, 3))
    actual = output_and_gradients(
        CAUSAL, *(jnp.asarray(x, jnp.float32) for x in arrays), segments(45, 3)
    )
    assert all(np.isfinite(np.asarray(x)).all() for x in actual[:4])
    np.testing.assert_allclose(actual[0], shifted, atol=2e-2)  # scores have errors of 1e-3


def reference_of_large_scores(q, k, v, segment_ids):
    """The output in float64, scores less their maximum."""
    scores = np.einsum("btnh,bsh->bnts", q, k[:, :, 0]) * SCALE
    scores = np.where(seen(q.shape[1], segment_ids, CAUSAL)[:, None], scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    return np.einsum("bnts,bsh->btnh", e / np.maximum(e.sum(-1, keepdims=True), 1e-300), v[:, :, 0])


def test_changing_one_document_changes_no_bit_of_the_others():
    segment_ids = segments(45, 4)
    arrays = [jnp.asarray(x, jnp.float32) for x in draw(45, 4, 2)]
    others = [jnp.asarray(100 * x, jnp.float32) for x in draw(45, 4, 2, seed=1)]
    in_second = (segment_ids == 2)[:, :, None, None]
    changed = [jnp.where(in_second, y, x) for x, y in zip(arrays, others, strict=True)]
    before = output_and_gradients(CAUSAL, *arrays, segment_ids)[:4]
    after = output_and_gradients(CAUSAL, *changed, segment_ids)[:4]
    for x, y in zip(before, after, strict=True):
        assert np.array_equal(np.asarray(x)[segment_ids != 2], np.asarray(y)[segment_ids != 2])
        assert not np.array_equal(np.asarray(x)[segment_ids == 2], np.asarray(y)[segment_ids == 2])


@hypothesis.given(
    ids=st.lists(st.integers(0, 4), min_size=48, max_size=48),
    rises=st.booleans(),
    causal=st.booleans(),
    window=st.sampled_from([None, 1, 2, 9, 17]),
    of_keys=st.booleans(),
)
@hypothesis.settings(max_examples=60)
def test_blocks_that_see_each_other_are_all_visited(ids, rises, causal, window, of_keys):
    """Whatever the order of ids; where they rise, the first and the last visited are needed."""
    rows, cols = 16, 8
    segment_ids = np.array([sorted(ids) if rises else ids], np.int32)
    spec = dataclasses.replace(CAUSAL, causal=causal, window=window)
    keep = seen(48, segment_ids, spec)[0]
    keep = keep.T if of_keys else keep
    needed = keep.reshape(48 // rows, rows, 48 // cols, cols).any((1, 3))
    ranges = np.asarray(visited(spec, jnp.asarray(segment_ids), rows, cols, of_keys=of_keys))[0]
    for needs, (first, end) in zip(needed, ranges, strict=True):
        where = np.flatnonzero(needs)
        if not len(where):
            continue
        assert 0 <= first <= where[0]
        assert where[-1] < end <= 48 // cols


def test_blocks_out_of_sight_are_not_visited():
    def num_visits(segment_ids, of_keys=False, **changes):
        spec = dataclasses.replace(CAUSAL, **changes)
        ids = jnp.asarray([segment_ids], jnp.int32)
        first, end = np.moveaxis(np.asarray(visited(spec, ids, 8, 8, of_keys=of_keys)), -1, 0)
        return np.maximum(end - first, 0).sum()

    one, two = [1] * 64, [1] * 32 + [2] * 32
    assert num_visits(one) == num_visits(one, of_keys=True) == 8 * 9 // 2
    assert num_visits(one, causal=False) == 8 * 8
    assert num_visits(two) == num_visits(two, of_keys=True) == 2 * (4 * 5 // 2)
    assert num_visits(two, causal=False) == 2 * 4 * 4
    assert num_visits(one, window=1) == 8
    assert num_visits(one, window=2) == num_visits(one, window=2, of_keys=True) == 8 + 7
    assert num_visits([1] * 24 + [0] * 40) == 3 * 4 // 2  # filler visits nothing
    assert num_visits([0] * 64) == 0


def test_without_interpretation_a_cpu_is_refused():
    q = jnp.zeros((1, 16, 1, 16), jnp.float32)
    spec = dataclasses.replace(CAUSAL, interpret=False)
    with pytest.raises(ValueError, match="interpret mode"):
        jax.jit(functools.partial(attend, spec))(q, q, q, None)


# Every entry of the tables that 2-byte numbers use: each has to fit the GPU's shared memory.
COMPILED = [
    ("h100", 64, {}),
    ("h100", 128, {}),
    ("h100", 256, {"causal": False}),
    ("a100", 64, {"causal": False, "window": 9}),
    ("a100", 128, {"window": 1000, "softcap": 30.0}),
    ("a100", 256, {}),
]


@pytest.mark.aot
@pytest.mark.slow
@pytest.mark.usefixtures("gpu_compiler")
@pytest.mark.parametrize(("target", "head_dim", "changes"), COMPILED)
def test_compiled_for_gpus_it_is_three_kernels_and_nothing_quadratic(target, head_dim, changes):
    length, num_heads, num_kv_heads = 8192, 4, 2
    devices = aot.compile_only_devices(target, 1)
    whole = NamedSharding(make_mesh(MeshConfig(), devices), PartitionSpec())
    sizes = blocks.flash_attention(devices[0], head_dim, itemsize=2)
    spec = dataclasses.replace(CAUSAL, **changes, blocks=sizes, interpret=False)
    q, k = (
        jax.ShapeDtypeStruct((1, length, n, head_dim), jnp.bfloat16, sharding=whole)
        for n in (num_heads, num_kv_heads)
    )
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32, sharding=whole)
    traced = jax.jit(functools.partial(output_and_gradients.__wrapped__, spec)).trace(
        q, k, k, q, ids
    )
    compiled = aot.compile_program(traced.lower(lowering_platforms=("cuda",)))
    found = hlo.read(compiled.as_text() or "")
    assert [each.target for each in found.kernels] == ["__gpu$xla.gpu.triton"] * 3
    assert found.matmuls == ()  # all products are inside of them
    # The log-sum-exp and do·o, float32, and where blocks have to go; scores would be T² numbers.
    linear = 2 * num_heads * length * 4 + 3 * 2 * length * 4
    assert compiled.memory_analysis().temp_size_in_bytes <= linear
