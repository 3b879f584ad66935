import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.kernels import flash_attention
from jaxtrain.models.attention import attend, attend_cached, choose
from jaxtrain.parallel.mesh import MeshConfig, make_mesh

N, K, H = 4, 2, 8
SCALE = 0.4
BLOCK = 16

# name -> (length, causal, window, softcap, documents per row or None)
CASES = {
    "one token": (1, True, None, None, None),
    "shorter than a block": (7, True, None, None, None),
    "blocks exactly": (32, True, None, None, None),
    "rest behind the last block": (45, True, None, None, None),
    "window smaller than a block": (45, True, 3, None, None),
    "window of one token": (20, True, 1, None, None),
    "window larger than a block": (45, True, 21, None, None),
    "soft cap": (20, True, None, 1.5, None),
    "bidirectional": (45, False, None, None, None),
    "bidirectional window": (45, False, 18, None, None),
    "documents": (45, True, None, None, 4),
    "documents, bidirectional, soft cap, window": (45, False, 5, 1.5, 4),
}
WITH_SINKS = ("blocks exactly", "window smaller than a block", "bidirectional window", "documents")
ALL = [(case, name) for case in CASES for name in ("chunked", "xla")]
ALL = [(case, name) for case, name in ALL if name == "chunked" or CASES[case][3] is None]


def segments(length, num_documents):
    """Two rows of documents, filler at the end of the first and in all of the last third row."""
    if num_documents is None:
        return None
    ids = np.arange(length) * num_documents // length + 1
    with_filler = np.where(np.arange(length) < length - 5, ids, 0)
    return np.stack([with_filler, ids, np.zeros_like(ids)]).astype(np.int32)


def draw(length, rows=3, num_kv_heads=K, head_dim=H, seed=0):
    rng = np.random.default_rng(seed)
    heads = (N, num_kv_heads, num_kv_heads, N)
    return [rng.normal(size=(rows, length, n, head_dim)) for n in heads]  # q, k, v, do


def reference(q, k, v, do, segment_ids, causal, window, softcap, sinks=None):
    """Output and gradients of q, k, v in float64, by the textbook with full score matrices.

    With `sinks` [N], also theirs: exp(sink) joins the sum that each softmax divides by.
    """
    group = q.shape[2] // k.shape[2]
    wide_k, wide_v = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
    scores = np.einsum("btnh,bsnh->bnts", q, wide_k) * SCALE
    slope = np.ones_like(scores)
    if softcap is not None:
        tanh = np.tanh(scores / softcap)
        scores, slope = softcap * tanh, 1 - tanh**2
    t, s = np.arange(q.shape[1])[:, None], np.arange(q.shape[1])[None, :]
    keep = np.ones((1, 1, *scores.shape[2:]), bool)
    if causal:
        keep = keep & (s <= t)
    if window is not None:
        keep = keep & (abs(t - s) < window)
    if segment_ids is not None:
        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        keep = keep & (same & (segment_ids > 0)[:, :, None])[:, None]
    e = np.where(keep, np.exp(scores), 0)
    sink = 0 if sinks is None else np.exp(sinks)[None, :, None, None]
    total = np.maximum(e.sum(-1, keepdims=True) + sink, 1e-300)
    p = e / total
    o = np.einsum("bnts,bsnh->btnh", p, wide_v)
    dp = np.einsum("btnh,bsnh->bnts", do, wide_v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * slope * SCALE

    def of_kv_heads(x):
        return x.reshape(*x.shape[:2], -1, group, x.shape[-1]).sum(3)

    dq = np.einsum("bnts,bsnh->btnh", ds, wide_k)
    dk = of_kv_heads(np.einsum("bnts,btnh->bsnh", ds, q))
    dv = of_kv_heads(np.einsum("bnts,btnh->bsnh", p, do))
    if sinks is None:
        return o, dq, dk, dv
    dsink = -(sink / total * (p * dp).sum(-1, keepdims=True)).sum((0, 2, 3))
    return o, dq, dk, dv, dsink


@functools.partial(jax.jit, static_argnums=(5, 6, 7, 8))
def output_and_gradients(
    q, k, v, do, segment_ids, causal, window, softcap, implementation, sinks=None
):
    def of_inputs(q, k, v, *sinks):
        return attend(
            q,
            k,
            v,
            sinks_N=sinks[0] if sinks else None,
            segment_ids_BT=segment_ids,
            causal=causal,
            window=window,
            softcap=softcap,
            scale=SCALE,
            implementation=implementation,
            block=BLOCK,
        )

    inputs = (q, k, v) if sinks is None else (q, k, v, sinks)
    output, pull = jax.vjp(of_inputs, *inputs)
    return output, *pull(do)


HOW = (None, True, None, None)  # segments, causal, window, soft cap


def max_error(actual, expected):
    """Largest difference, relative to the largest expected value."""
    return np.abs(np.asarray(actual, np.float64) - expected).max() / max(np.abs(expected).max(), 1)


@pytest.mark.parametrize(("case", "implementation"), ALL)
def test_output_and_gradients_equal_float64_reference(case, implementation):
    length, causal, window, softcap, num_documents = CASES[case]
    segment_ids = segments(length, num_documents)
    arrays = draw(length)
    expected = reference(*arrays, segment_ids, causal, window, softcap)
    arrays = [jnp.asarray(x, jnp.float32) for x in arrays]
    actual = output_and_gradients(*arrays, segment_ids, causal, window, softcap, implementation)
    for name, x, y in zip(("o", "dq", "dk", "dv"), actual, expected, strict=True):
        assert max_error(x, y) < 2e-6, name  # float32 sums of up to 45 terms


@pytest.mark.parametrize("implementation", ["chunked", "xla"])
@pytest.mark.parametrize("case", WITH_SINKS)
def test_sinks_take_their_share_of_the_softmax(case, implementation):
    length, causal, window, softcap, num_documents = CASES[case]
    segment_ids = segments(length, num_documents)
    arrays, sinks = draw(length), np.array([-2.0, 0.5, 1.5, 4.0])
    expected = reference(*arrays, segment_ids, causal, window, softcap, sinks)
    arrays = [jnp.asarray(x, jnp.float32) for x in arrays]
    how = (segment_ids, causal, window, softcap, implementation)
    actual = output_and_gradients(*arrays, *how, jnp.asarray(sinks, jnp.float32))
    for name, x, y in zip(("o", "dq", "dk", "dv", "dsink"), actual, expected, strict=True):
        assert max_error(x, y) < 3e-6, name
    assert np.abs(expected[4]).max() > 0.1


@pytest.mark.parametrize("implementation", ["chunked", "xla"])
def test_values_may_have_another_head_size(implementation):
    """As in latent attention: the output has theirs. Zeros behind them change nothing."""
    q, k, v, do = (jnp.asarray(x, jnp.float32) for x in draw(20))
    short = output_and_gradients(q, k, v[..., :5], do[..., :5], *HOW, implementation)
    padded = [x.at[..., 5:].set(0) for x in (v, do)]
    whole = output_and_gradients(q, k, *padded, *HOW, implementation)
    for x, y in zip(short, whole, strict=True):
        np.testing.assert_allclose(x, y[..., : x.shape[-1]], atol=1e-6)


@pytest.mark.parametrize("num_kv_heads", [1, N])
def test_chunked_equals_reference_for_one_and_for_as_many_kv_heads(num_kv_heads):
    arrays = draw(20, num_kv_heads=num_kv_heads)
    expected = reference(*arrays, None, True, None, None)
    arrays = [jnp.asarray(x, jnp.float32) for x in arrays]
    actual = output_and_gradients(*arrays, None, True, None, None, "chunked")
    assert max(map(max_error, actual, expected)) < 2e-6


@pytest.mark.parametrize("implementation", ["chunked", "xla"])
@pytest.mark.parametrize("length", [64, 128, 192, 704])
def test_bfloat16_is_finite_and_near_the_reference_with_a_row_of_filler(implementation, length):
    segment_ids = segments(length, 3)
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in draw(length)]
    expected = reference(
        *(np.asarray(x, np.float64) for x in arrays), segment_ids, True, None, None
    )
    actual = output_and_gradients(*arrays, segment_ids, True, None, None, implementation)
    for x, y in zip(actual, expected, strict=True):
        assert x.dtype == jnp.bfloat16
        assert np.isfinite(np.asarray(x, np.float32)).all()
        error = np.abs(np.asarray(x, np.float64) - y).max() / np.abs(y).max()
        assert error < 3e-2  # a few roundings to 8 bits of mantissa


@pytest.mark.parametrize("implementation", ["chunked", "xla"])
def test_filler_gets_exactly_zero_output_and_gradients(implementation):
    segment_ids = segments(45, 4)
    arrays = [jnp.asarray(x, jnp.float32) for x in draw(45)]
    results = output_and_gradients(*arrays, segment_ids, True, None, None, implementation)
    for x in results:
        assert not np.asarray(x)[segment_ids == 0].any()
    assert np.asarray(results[0])[segment_ids > 0].all()


@pytest.mark.parametrize("implementation", ["chunked", "xla"])
def test_changing_one_document_changes_no_bit_of_the_others(implementation):
    segment_ids = segments(45, 4)
    arrays = [jnp.asarray(x, jnp.float32) for x in draw(45)]
    others = [jnp.asarray(100 * x, jnp.float32) for x in draw(45, seed=1)]
    in_second = (segment_ids == 2)[:, :, None, None]
    changed = [jnp.where(in_second, y, x) for x, y in zip(arrays, others, strict=True)]
    before = output_and_gradients(*arrays, segment_ids, True, None, None, implementation)
    after = output_and_gradients(*changed, segment_ids, True, None, None, implementation)
    for x, y in zip(before, after, strict=True):
        assert np.array_equal(np.asarray(x)[segment_ids != 2], np.asarray(y)[segment_ids != 2])
        assert not np.array_equal(np.asarray(x)[segment_ids == 2], np.asarray(y)[segment_ids == 2])


@pytest.mark.parametrize("implementation", ["chunked", "xla"])
def test_scores_beyond_the_range_of_exp_are_fine(implementation):
    q, k, v, do = (jnp.asarray(x, jnp.float32) for x in draw(20))
    results = output_and_gradients(1e3 * q, k, v, do, None, True, None, None, implementation)
    largest = reference(*(np.asarray(x, np.float64) for x in (q, k, v, do)), None, True, None, None)
    assert all(np.isfinite(np.asarray(x)).all() for x in results)
    assert np.abs(np.asarray(results[0])).max() > np.abs(largest[0]).max()  # hardly averaged


def test_attend_refuses_what_choose_would_have():
    q, k, v, _ = (jnp.asarray(x, jnp.float32) for x in draw(8))
    options = dict(causal=True, window=None, scale=SCALE, block=BLOCK, segment_ids_BT=None)
    with pytest.raises(ValueError, match="xla attention has no soft cap"):
        attend(q, k, v, softcap=1.0, implementation="xla", **options)
    with pytest.raises(ValueError, match="cudnn attention has no sinks"):
        attend(q, k, v, sinks_N=q[0, 0, :, 0], softcap=None, implementation="cudnn", **options)
    with pytest.raises(ValueError, match="must be xla, cudnn, pallas or chunked"):
        attend(q, k, v, softcap=None, implementation="auto", **options)
    with pytest.raises(ValueError, match="must be equally long"):
        attend(q, k[:, :4], v[:, :4], softcap=None, implementation="chunked", **options)


# What cuDNN can do; each test changes one thing.
FIT = dict(
    platform="gpu", isolated=False, head_dim=128, dtype=jnp.bfloat16, softcap=None, window=None
)


def test_auto_takes_cudnn_where_it_fits():
    assert choose("auto", **FIT) == ("cudnn", "cuDNN flash attention")
    assert choose("auto", **{**FIT, "window": 64})[0] == "cudnn"


OBSTACLES = [
    ({"platform": "cpu"}, "needs an NVIDIA GPU (running on cpu)", False),
    ({"dtype": jnp.float32}, "needs bfloat16 or float16 (precision gives float32)", True),
    ({"isolated": True}, "does not isolate packed documents", True),
    ({"head_dim": 100}, "needs heads of a multiple of 8 up to", True),
    ({"head_dim": 320}, "needs heads of a multiple of 8 up to", False),
    ({"softcap": 50.0}, "has no soft cap (attention_softcap=50.0)", True),
    ({"window": 64, "causal": False}, "has a window only to the left", True),
    ({"sinks": True}, "has no sinks (attention_sinks=True)", True),
]


@pytest.mark.parametrize(("change", "reason", "has_kernel"), OBSTACLES)
def test_auto_says_why_it_is_not_cudnn_and_what_could_be_asked_for(change, reason, has_kernel):
    """Our own kernel is not taken by itself: no GPU has run it."""
    name, said = choose("auto", **{**FIT, **change})
    assert name == "chunked"
    assert reason in said
    assert ("attention='pallas' asks for our own kernel, which no GPU" in said) == has_kernel


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"platform": "cpu"}, "needs an NVIDIA GPU (running on cpu)"),
        ({"dtype": jnp.float64}, "needs bfloat16 or float16 or float32 (precision gives float64)"),
        ({"head_dim": 320}, "needs heads of up to 256 (head_dim=320)"),
    ],
)
def test_asking_for_our_kernel_is_an_error_where_it_cannot_be_used(change, reason):
    with pytest.raises(ValueError, match=r"^attention='pallas' cannot be used: it ") as error:
        choose("pallas", **{**FIT, **change})
    assert reason in str(error.value)
    assert str(error.value).endswith("; set attention='auto'.")


def test_our_kernel_on_a_mesh_equals_chunked_attention_on_one_device(monkeypatch):
    """Rows over two devices, heads over two; each computes its own, sinks included."""
    interpreted = functools.partial(flash_attention.Spec, interpret=True)
    monkeypatch.setattr(flash_attention, "Spec", interpreted)  # no GPU here
    mesh = make_mesh(MeshConfig(fsdp=2, tensor=2, data=1), jax.devices()[:4])
    q, k, v, do = (jnp.asarray(x, jnp.float32) for x in draw(20, rows=2))
    segment_ids, sinks = jnp.asarray(segments(20, 3)[:2]), jnp.asarray([-2.0, 0.5, 1.5, 4.0])
    how = dict(segment_ids_BT=segment_ids, causal=True, window=7, softcap=None, scale=SCALE)

    @functools.partial(jax.jit, static_argnums=0)
    def run(implementation, *inputs):
        def of_inputs(q, k, v, sinks):
            return attend(
                q, k, v, sinks_N=sinks, implementation=implementation, block=16, mesh=mesh, **how
            )

        output, pull = jax.vjp(of_inputs, *inputs)
        return output, *pull(do)

    expected = run("chunked", q, k, v, sinks)
    by_row_and_head = NamedSharding(mesh, PartitionSpec("fsdp", None, "tensor"))
    q, k, v = jax.device_put((q, k, v), by_row_and_head)
    for x, y in zip(run("pallas", q, k, v, sinks), expected, strict=True):
        np.testing.assert_allclose(x, y, atol=3e-6)


@pytest.mark.parametrize(("change", "reason", "_has_kernel"), OBSTACLES)
def test_asking_for_cudnn_is_an_error_where_it_cannot_be_used(change, reason, _has_kernel):
    with pytest.raises(ValueError, match=r"^attention='cudnn' cannot be used: it ") as error:
        choose("cudnn", **{**FIT, **change})
    assert reason in str(error.value)
    assert str(error.value).endswith("; set attention='auto'.")


def test_heads_above_128_are_cudnn_only_when_asked_for():
    wide = {**FIT, "head_dim": 256}  # Hopper and later can, and the platform's name says neither
    assert choose("auto", **wide)[0] == "chunked"
    assert choose("cudnn", **wide)[0] == "cudnn"


def test_xla_with_soft_cap_is_an_error():
    with pytest.raises(ValueError, match=r"attention='xla' .*attention_softcap=50.0.*'auto'\.$"):
        choose("xla", **{**FIT, "softcap": 50.0})


def test_named_implementations_are_taken_as_asked():
    on_cpu = {**FIT, "platform": "cpu", "isolated": True}
    assert choose("chunked", **on_cpu) == ("chunked", "asked for by the config")
    assert choose("xla", **on_cpu) == ("xla", "asked for by the config")
    with pytest.raises(ValueError, match="attention='flash' must be auto, cudnn, pallas, "):
        choose("flash", **on_cpu)


@pytest.mark.parametrize(
    ("first", "softcap", "sinks"),
    [(0, None, None), (3, None, None), (0, 2.0, None), (0, None, [-2.0, 0.5, 1.5, 4.0])],
)
def test_a_cached_query_sees_the_visible_tokens_as_in_a_row(first, softcap, sinks):
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(3, K, 6, 8)), rng.normal(size=(3, K, 6, 5))
    queries, lengths = rng.normal(size=(3, N, 8)), np.array([4, 5, 6])
    places = np.arange(6)[None]
    visible = (places < lengths[:, None]) & (places >= first)
    asked = None if sinks is None else jnp.asarray(sinks, jnp.float32)
    found = attend_cached(
        *(jnp.asarray(x, jnp.float32) for x in (queries, keys, values)),
        jnp.asarray(visible),
        scale=SCALE,
        softcap=softcap,
        sinks_N=asked,
    )
    for row, length in enumerate(lengths):
        for head in range(N):
            k, v = keys[row, head // 2, first:length], values[row, head // 2, first:length]
            score = SCALE * k @ queries[row, head]
            score = score if softcap is None else softcap * np.tanh(score / softcap)
            total = np.exp(score).sum() + (0 if sinks is None else np.exp(sinks[head]))
            np.testing.assert_allclose(found[row, head], np.exp(score) / total @ v, atol=1e-5)
