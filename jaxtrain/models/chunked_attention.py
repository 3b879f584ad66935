"""Attention in blocks: O(T) memory without a kernel (after FlashAttention-2, arXiv 2307.08691).

The forward pass keeps the output and each query's log-sum-exp; the backward pass makes the
probabilities again, block by block, from

    p = exp(score - lse)    ds = p · (do·v - do·o)    dq = ds·k    dk = dsᵀ·q    dv = pᵀ·do

so that no T × T array ever exists. One loop runs over the pairs of blocks that see each other: the
future, and what is behind the window, are not visited, and program and memory do not grow with the
number of blocks. Unrolling the loop, or several blocks of keys at once, was slower on CPUs even for
4 blocks (1.1–1.2 times; the scores of one pair fit the cache).

Layout: heads ahead of tokens, query heads grouped by the k/v head that they share (k and v are
never repeated), gradients of k and v as [H, S] until the end. With the other orders XLA's CPU
matmuls transpose whole blocks of scores first (4 times slower).
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, Int

SAVED_NAME = "attention_out"

# Scores that do not count, and the least maximum of a row of scores. Both finite: a query that sees
# nothing has exp(_MASKED - _FLOOR) = 0 everywhere, thus output 0 and gradient 0, where infinities
# would give inf - inf.
_MASKED = -1e30
_FLOOR = -1e20
_TINY = 1e-30  # at least this is the sum of probabilities, which is 0 for such a query


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is compiled in; the fields are those of `attention.attend`."""

    causal: bool
    window: int | None
    softcap: float | None
    scale: float
    block: int


class _Softmax(NamedTuple):
    """A softmax over some of the keys; merges with one over others (Milakov 2018, 1805.02867)."""

    max_BKGT: jax.Array
    sum_BKGT: jax.Array  # of exp(score - max)
    acc_BKGTH: jax.Array  # Σ exp(score - max) · v


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    spec: Spec,
    q_BTNH: Float[jax.Array, "B T N H"],
    k_BSKH: Float[jax.Array, "B S K H"],
    v: Float[jax.Array, "B S K _"],
    segment_ids_BT: Int[jax.Array, "B T"] | None,
    sinks_N: Float[jax.Array, "N"] | None = None,
) -> Float[jax.Array, "B T N _"]:
    """See `attention.attend`."""
    return _forward(spec, q_BTNH, k_BSKH, v, segment_ids_BT, sinks_N)[0]


def _attend_forward(spec, q_BTNH, k_BSKH, v_BSKH, segment_ids_BT, sinks_N):
    o_BTNH, lse_BKGT = _forward(spec, q_BTNH, k_BSKH, v_BSKH, segment_ids_BT, sinks_N)
    # Both, or a remat policy that keeps only the output would still run the forward pass again.
    o_BTNH = checkpoint_name(o_BTNH, SAVED_NAME)
    lse_BKGT = checkpoint_name(lse_BKGT, SAVED_NAME)
    return o_BTNH, (q_BTNH, k_BSKH, v_BSKH, segment_ids_BT, sinks_N, o_BTNH, lse_BKGT)


def _attend_backward(spec, residuals, do_BTNH):
    q_BTNH, k_BSKH, v_BSKH, segment_ids_BT, sinks_N, o_BTNH, lse_BKGT = residuals
    do_dot_o_BTN1 = jnp.sum(
        do_BTNH.astype(jnp.float32) * o_BTNH.astype(jnp.float32), axis=-1, keepdims=True
    )
    num_kv_heads = k_BSKH.shape[2]
    do_dot_o_BKGT = _grouped(do_dot_o_BTN1, num_kv_heads)[..., 0]
    dq_BKGTH, dk_BKHS, dv_BKHS = _backward_loop(
        _Blocks(spec, q_BTNH.shape[1]),
        _grouped(q_BTNH, num_kv_heads),
        k_BSKH.swapaxes(1, 2),
        v_BSKH.swapaxes(1, 2),
        segment_ids_BT,
        _grouped(do_BTNH, num_kv_heads),
        do_dot_o_BKGT,
        lse_BKGT,
    )
    return (
        _ungrouped(dq_BKGTH).astype(q_BTNH.dtype),
        dk_BKHS.transpose(0, 3, 1, 2).astype(k_BSKH.dtype),
        dv_BKHS.transpose(0, 3, 1, 2).astype(v_BSKH.dtype),
        None,
        None if sinks_N is None else _of_sinks(sinks_N, do_dot_o_BKGT, lse_BKGT),
    )


attend.defvjp(_attend_forward, _attend_backward)


def _of_sinks(sinks_N, do_dot_o_BKGT, lse_BKGT):
    """Their gradient: that of a score whose value is 0, summed over rows and queries."""
    p_BKGT = jnp.exp(_over_queries(sinks_N, lse_BKGT) - lse_BKGT)
    return -jnp.sum(p_BKGT * do_dot_o_BKGT, axis=(0, 3)).reshape(-1).astype(sinks_N.dtype)


def _over_queries(sinks_N, like_BKGT):
    _, num_kv_heads, num_grouped, _ = like_BKGT.shape
    return sinks_N.astype(jnp.float32).reshape(1, num_kv_heads, num_grouped, 1)


def _forward(spec, q_BTNH, k_BSKH, v_BSKH, segment_ids_BT, sinks_N):
    """Output [B, T, N, H] in the dtype of q, and log-sum-exp [B, K, G, T] in float32."""
    softmax = _forward_loop(
        _Blocks(spec, q_BTNH.shape[1]),
        _grouped(q_BTNH, k_BSKH.shape[2]),
        k_BSKH.swapaxes(1, 2),
        v_BSKH.swapaxes(1, 2),
        segment_ids_BT,
    )
    if sinks_N is not None:  # as one more block, of a key whose value is 0
        sink_BKGT = jnp.broadcast_to(
            _over_queries(sinks_N, softmax.sum_BKGT), softmax.sum_BKGT.shape
        )
        nothing_BKGTH = jnp.zeros_like(softmax.acc_BKGTH)
        alone = _Softmax(sink_BKGT, jnp.ones_like(sink_BKGT), nothing_BKGTH)
        softmax = _merged(softmax, alone)
    sum_BKGT = jnp.maximum(softmax.sum_BKGT, _TINY)
    o_BKGTH = softmax.acc_BKGTH / sum_BKGT[..., None]
    return _ungrouped(o_BKGTH).astype(q_BTNH.dtype), softmax.max_BKGT + jnp.log(sum_BKGT)


# --- one block of queries against one block of keys ---


def _scores(spec, q_BKGTH, k_BKSH, keep) -> jax.Array:
    s_BKGTS = _dot(q_BKGTH, k_BKSH, (4,), (3,)) * spec.scale
    if spec.softcap is not None:
        s_BKGTS = spec.softcap * jnp.tanh(s_BKGTS / spec.softcap)
    return s_BKGTS if keep is None else jnp.where(keep, s_BKGTS, _MASKED)


def _forward_block(spec, q_BKGTH, k_BKSH, v_BKSH, keep) -> _Softmax:
    s_BKGTS = _scores(spec, q_BKGTH, k_BKSH, keep)
    max_BKGT = jnp.maximum(jnp.max(s_BKGTS, axis=-1), _FLOOR)
    p_BKGTS = jnp.exp(s_BKGTS - max_BKGT[..., None])
    acc_BKGTH = _dot(p_BKGTS.astype(v_BKSH.dtype), v_BKSH, (4,), (2,))
    return _Softmax(max_BKGT, jnp.sum(p_BKGTS, axis=-1), acc_BKGTH)


def _backward_block(spec, q_BKGTH, k_BKSH, v_BKSH, keep, do_BKGTH, do_dot_o_BKGT, lse_BKGT):
    """This pair's parts of dq [B, K, G, T, H], dk and dv [B, K, H, S], in float32."""
    s_BKGTS = _scores(spec, q_BKGTH, k_BKSH, keep)
    p_BKGTS = jnp.exp(s_BKGTS - lse_BKGT[..., None])
    dv_BKHS = _dot(do_BKGTH, p_BKGTS.astype(do_BKGTH.dtype), (2, 3), (2, 3))
    dp_BKGTS = _dot(do_BKGTH, v_BKSH, (4,), (3,))
    ds_BKGTS = p_BKGTS * (dp_BKGTS - do_dot_o_BKGT[..., None]) * spec.scale
    if spec.softcap is not None:  # masked scores, clamped to -cap, have p = 0 anyway
        tanh_BKGTS = jnp.maximum(s_BKGTS / spec.softcap, -1.0)
        ds_BKGTS = ds_BKGTS * (1 - jnp.square(tanh_BKGTS))
    ds_BKGTS = ds_BKGTS.astype(q_BKGTH.dtype)
    dq_BKGTH = _dot(ds_BKGTS, k_BKSH, (4,), (2,))
    dk_BKHS = _dot(q_BKGTH, ds_BKGTS, (2, 3), (2, 3))
    return dq_BKGTH, dk_BKHS, dv_BKHS


def _merged(a: _Softmax, b: _Softmax) -> _Softmax:
    max_BKGT = jnp.maximum(a.max_BKGT, b.max_BKGT)
    of_a, of_b = jnp.exp(a.max_BKGT - max_BKGT), jnp.exp(b.max_BKGT - max_BKGT)
    return _Softmax(
        max_BKGT,
        of_a * a.sum_BKGT + of_b * b.sum_BKGT,
        of_a[..., None] * a.acc_BKGTH + of_b[..., None] * b.acc_BKGTH,
    )


# --- the loop over pairs of blocks ---


class _Blocks:
    """A row cut into equal blocks, the last one filled up with padding."""

    def __init__(self, spec: Spec, length: int) -> None:
        self.spec, self.length = spec, length
        self.num = math.ceil(length / spec.block)
        self.size = math.ceil(length / self.num)  # 130 tokens: 2 × 65 instead of 128 + 2
        self.padding = self.num * self.size - length

    def pairs(self) -> np.ndarray:
        """Where each block of queries, and a block of keys that it sees, start: [pairs, 2]."""
        reach = self.length if self.spec.window is None else self.spec.window - 1
        ahead = 0 if self.spec.causal else reach
        starts = np.arange(self.num, dtype=np.int32) * self.size
        behind = starts[:, None] - starts[None, :]
        nearest = self.size - 1  # how much closer than their starts two tokens can be
        sees = (behind - nearest <= reach) & (-behind - nearest <= ahead)
        return starts[np.argwhere(sees)]

    def pad(self, x: jax.Array, axis: int) -> jax.Array:
        """`x` with zeros at its end: queries whose output is cut off, filler segments."""
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, self.padding)
        return jnp.pad(x, widths)

    def take(self, x: jax.Array, start: jax.Array, axis: int) -> jax.Array:
        """The block of `x` from `start` on."""
        return lax.dynamic_slice_in_dim(x, start, self.size, axis)

    def keep(self, rows, cols, segment_ids_BT: jax.Array | None) -> jax.Array | None:
        """Where a query sees a key, broadcastable to [B, K, G, T, S]; None: everywhere."""
        within = jnp.arange(self.size, dtype=jnp.int32)
        rows_T1, cols_1S = (rows + within)[:, None], (cols + within)[None, :]
        kept = []
        if self.spec.causal:
            kept.append(cols_1S <= rows_T1)
        elif self.padding:  # which is everyone's future where it is causal
            kept.append(cols_1S < self.length)
        if self.spec.window is not None:
            kept.append(rows_T1 - cols_1S < self.spec.window)
            if not self.spec.causal:
                kept.append(cols_1S - rows_T1 < self.spec.window)
        kept = [x[None] for x in kept]
        if segment_ids_BT is not None:
            of_rows_BT1 = self.take(segment_ids_BT, rows, 1)[:, :, None]
            of_cols_B1S = self.take(segment_ids_BT, cols, 1)[:, None, :]
            kept += [of_rows_BT1 == of_cols_B1S, of_rows_BT1 > 0]
        return jnp.expand_dims(functools.reduce(jnp.logical_and, kept), (1, 2)) if kept else None


def _forward_loop(blocks: _Blocks, q_BKGTH, k_BKSH, v_BKSH, segment_ids_BT) -> _Softmax:
    q_BKGTH = blocks.pad(q_BKGTH, 3)
    k_BKSH, v_BKSH = blocks.pad(k_BKSH, 2), blocks.pad(v_BKSH, 2)
    segment_ids_BT = None if segment_ids_BT is None else blocks.pad(segment_ids_BT, 1)

    def visit(softmax: _Softmax, pair):
        rows, cols = pair
        part = _forward_block(
            blocks.spec,
            blocks.take(q_BKGTH, rows, 3),
            blocks.take(k_BKSH, cols, 2),
            blocks.take(v_BKSH, cols, 2),
            blocks.keep(rows, cols, segment_ids_BT),
        )
        before = jax.tree.map(lambda x: blocks.take(x, rows, 3), softmax)
        return jax.tree.map(
            lambda x, new: lax.dynamic_update_slice_in_dim(x, new, rows, axis=3),
            softmax,
            _merged(before, part),
        ), None

    empty = _Softmax(
        jnp.full(q_BKGTH.shape[:4], _FLOOR, jnp.float32),
        jnp.zeros(q_BKGTH.shape[:4], jnp.float32),
        jnp.zeros((*q_BKGTH.shape[:4], v_BKSH.shape[-1]), jnp.float32),
    )
    softmax, _ = lax.scan(visit, empty, blocks.pairs())
    return jax.tree.map(lambda x: x[:, :, :, : blocks.length], softmax)


def _backward_loop(blocks: _Blocks, q_BKGTH, k_BKSH, v_BKSH, segment_ids_BT, *of_queries):
    """dq, dk and dv as `_backward_block` gives them; `of_queries` are its last three arguments."""
    q_BKGTH = blocks.pad(q_BKGTH, 3)
    k_BKSH, v_BKSH = blocks.pad(k_BKSH, 2), blocks.pad(v_BKSH, 2)
    segment_ids_BT = None if segment_ids_BT is None else blocks.pad(segment_ids_BT, 1)
    of_queries = [blocks.pad(x, 3) for x in of_queries]

    def visit(grads, pair):
        rows, cols = pair
        parts = _backward_block(
            blocks.spec,
            blocks.take(q_BKGTH, rows, 3),
            blocks.take(k_BKSH, cols, 2),
            blocks.take(v_BKSH, cols, 2),
            blocks.keep(rows, cols, segment_ids_BT),
            *(blocks.take(x, rows, 3) for x in of_queries),
        )
        # dq is [B, K, G, T, H] and dk, dv are [B, K, H, S]: the token axis is the fourth of each.
        return tuple(
            lax.dynamic_update_slice_in_dim(x, blocks.take(x, start, 3) + dx, start, axis=3)
            for x, dx, start in zip(grads, parts, (rows, cols, cols), strict=True)
        ), None

    zeros = tuple(
        jnp.zeros(shape, jnp.float32)
        for shape in (q_BKGTH.shape, k_BKSH.swapaxes(2, 3).shape, v_BKSH.swapaxes(2, 3).shape)
    )
    (dq_BKGTH, dk_BKHS, dv_BKHS), _ = lax.scan(visit, zeros, blocks.pairs())
    length = blocks.length
    return dq_BKGTH[:, :, :, :length], dk_BKHS[..., :length], dv_BKHS[..., :length]


# --- layout and products ---


def _grouped(x_BTNH: jax.Array, num_kv_heads: int) -> jax.Array:
    """[B, T, N, H] as [B, K, G, T, H]."""
    b, t, n, h = x_BTNH.shape
    x_BTKGH = x_BTNH.reshape(b, t, num_kv_heads, n // num_kv_heads, h)
    return x_BTKGH.transpose(0, 2, 3, 1, 4)


def _ungrouped(x_BKGTH: jax.Array) -> jax.Array:
    b, k, g, t, h = x_BKGTH.shape
    return x_BKGTH.transpose(0, 3, 1, 2, 4).reshape(b, t, k * g, h)


def _dot(lhs: jax.Array, rhs: jax.Array, of_lhs: tuple[int, ...], of_rhs: tuple[int, ...]):
    """Product per batch row and k/v head, summed over the given dimensions, in float32."""
    return lax.dot_general(
        lhs,
        rhs,
        ((of_lhs, of_rhs), ((0, 1), (0, 1))),
        # By default an NVIDIA GPU multiplies float32 in TF32.
        precision=lax.Precision.HIGHEST if lhs.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
