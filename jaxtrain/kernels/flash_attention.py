"""Flash attention that keeps documents apart (after FlashAttention-2, arXiv 2307.08691).

Three kernels: the output, the gradient of queries, that of keys and values. Each program of a
kernel owns one block of rows and loops over the blocks of columns that any of its rows sees, so no
T × T array exists and neither the future, nor what is behind the window, nor other documents cost
anything: `visited` says from which block to which each has to go.

    p = 2^(score - lse)    ds = p · (do·v - do·o) · slope    dq = ds·k    dk = dsᵀ·q    dv = pᵀ·do

Scores and log-sum-exps are in bits (log2 e is a part of the scale): GPUs have 2^x. Products are of
the inputs' format, summed in float32; float32 inputs are multiplied in float32, not in TF32.

Letters are those of `types.LEGEND`. Rows are filled up to whole blocks with filler, heads to a
power of two with zeros, which change nothing.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from jaxtrain.kernels.blocks import Block, FlashBlocks

#: The name under which remat policies can keep what the backward pass needs of the forward pass.
SAVED_NAME = "attention_out"

_LOG2_E = math.log2(math.e)
# Scores that do not count, and the least maximum of a row of scores. Both finite: a query that sees
# nothing has 2^(_MASKED - _FLOOR) = 0 everywhere, thus output 0 and gradient 0.
_MASKED = -1e30
_FLOOR = -1e20
_TINY = 1e-30  # at least this is the sum of probabilities, which is 0 for such a query


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is compiled in; all but the last two are those of `models.attention.attend`."""

    causal: bool
    window: int | None
    softcap: float | None
    scale: float
    blocks: FlashBlocks
    interpret: bool = False  # runs on CPUs, to check numbers, and as slowly as that is


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    spec: Spec,
    q_BTNH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    segment_ids_BT: jax.Array | None,
    sinks_N: jax.Array | None = None,
) -> jax.Array:
    """See `models.attention.attend`; values may have another head size than queries and keys."""
    return _forward(spec, q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, sinks_N)[0]


def _forward(spec, q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, sinks_N):
    """Output [B, T, N, H] and log-sum-exp [B, N, T] in bits, float32."""
    arrays = _Filled(spec, segment_ids_BT, q_BTNH.shape[:2])
    q, k, v = map(arrays.fill, (q_BTNH, k_BTKH, v_BTKH))
    o_BTNH, lse_BNT = _run_forward(spec, arrays.ids_BT, q, k, v)
    o_BTNH, lse_BNT = arrays.cut(o_BTNH, v_BTKH), lse_BNT[:, :, : arrays.length]
    if sinks_N is not None:  # one more key, whose value is 0: the softmax sums to less
        sinks_1N1 = (_LOG2_E * sinks_N.astype(jnp.float32))[None, :, None]
        with_sinks_BNT = jnp.logaddexp2(lse_BNT, jnp.broadcast_to(sinks_1N1, lse_BNT.shape))
        left_BTN1 = jnp.exp2(lse_BNT - with_sinks_BNT).swapaxes(1, 2)[..., None]
        o_BTNH = (o_BTNH.astype(jnp.float32) * left_BTN1).astype(o_BTNH.dtype)
        lse_BNT = with_sinks_BNT
    return o_BTNH, lse_BNT


def _attend_forward(spec, q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, sinks_N):
    o_BTNH, lse_BNT = _forward(spec, q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, sinks_N)
    # Both, or a remat policy that keeps only the output would still run the forward pass again.
    o_BTNH = checkpoint_name(o_BTNH, SAVED_NAME)
    lse_BNT = checkpoint_name(lse_BNT, SAVED_NAME)
    return o_BTNH, (q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, sinks_N, o_BTNH, lse_BNT)


def _attend_backward(spec, residuals, do_BTNH):
    q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, sinks_N, o_BTNH, lse_BNT = residuals
    do_dot_o_BTN = jnp.sum(do_BTNH.astype(jnp.float32) * o_BTNH.astype(jnp.float32), axis=-1)
    do_dot_o_BNT = do_dot_o_BTN.swapaxes(1, 2)
    arrays = _Filled(spec, segment_ids_BT, q_BTNH.shape[:2])
    q, k, v, do = map(arrays.fill, (q_BTNH, k_BTKH, v_BTKH, do_BTNH))
    lse, do_dot_o = (arrays.fill_rows(x, axis=2) for x in (lse_BNT, do_dot_o_BNT))
    dq_BTNH = _run_of_queries(spec, arrays.ids_BT, q, k, v, do, do_dot_o, lse)
    dk_BTKH, dv_BTKH = _run_of_keys(spec, arrays.ids_BT, q, k, v, do, do_dot_o, lse)
    grads = (arrays.cut(dq_BTNH, q_BTNH), arrays.cut(dk_BTKH, k_BTKH), arrays.cut(dv_BTKH, v_BTKH))
    if sinks_N is None:
        return *grads, None, None
    p_BNT = jnp.exp2((_LOG2_E * sinks_N.astype(jnp.float32))[None, :, None] - lse_BNT)
    return *grads, None, -jnp.sum(p_BNT * do_dot_o_BNT, axis=(0, 2)).astype(sinks_N.dtype)


attend.defvjp(_attend_forward, _attend_backward)


class _Filled:
    """Rows filled up to whole blocks, heads to powers of two."""

    def __init__(self, spec: Spec, segment_ids_BT: jax.Array | None, shape: tuple[int, int]):
        self.length = shape[1]
        self.missing = -self.length % spec.blocks.tokens
        if segment_ids_BT is None:
            segment_ids_BT = jnp.ones(shape, jnp.int32)
        self.ids_BT = self.fill_rows(segment_ids_BT.astype(jnp.int32), axis=1)

    def fill_rows(self, x: jax.Array, axis: int) -> jax.Array:
        """`x` with zeros behind the tokens, which lie along `axis`."""
        if not self.missing:
            return x
        return jnp.pad(x, [(0, self.missing if i == axis else 0) for i in range(x.ndim)])

    def fill(self, x_BTNH: jax.Array) -> jax.Array:
        """Tokens and head filled up."""
        head_dim = x_BTNH.shape[-1]
        wide = max(16, 1 << (head_dim - 1).bit_length())
        return jnp.pad(x_BTNH, ((0, 0), (0, self.missing), (0, 0), (0, wide - head_dim)))

    def cut(self, x_BTNH: jax.Array, like: jax.Array) -> jax.Array:
        """What was filled up, as long and as wide as `like`."""
        return x_BTNH[:, : self.length, :, : like.shape[-1]]


def visited(
    spec: Spec, segment_ids_BT: jax.Array, rows: int, cols: int, *, of_keys: bool = False
) -> jax.Array:
    """From which block of `cols` tokens, to before which, each block of `rows` tokens has to go.

    [B, T / rows, 2]. Segment ids may come in any order, and bound the way best where they rise.

    Args:
      of_keys: rows are keys and cols the queries that see them, not the other way round.
    """
    low_BR, high_BR = _extremes(segment_ids_BT, rows)
    low_BC, high_BC = _extremes(segment_ids_BT, cols)
    so_far_BC = lax.cummax(high_BC, axis=1)
    from_here_BC = lax.cummin(low_BC, axis=1, reverse=True)
    ends_before = so_far_BC[:, None, :] < low_BR[:, :, None]  # sums of it: fused, never stored
    has_begun = from_here_BC[:, None, :] <= high_BR[:, :, None]
    first_BR = jnp.sum(ends_before, axis=-1, dtype=jnp.int32)
    end_BR = jnp.sum(has_begun, axis=-1, dtype=jnp.int32)
    start_1R = jnp.arange(low_BR.shape[1], dtype=jnp.int32)[None] * rows
    behind = None if spec.window is None else spec.window - 1
    ahead = 0 if spec.causal else behind
    behind, ahead = (ahead, behind) if of_keys else (behind, ahead)
    if behind is not None:
        first_BR = jnp.maximum(first_BR, (start_1R - behind) // cols)
    if ahead is not None:
        end_BR = jnp.minimum(end_BR, (start_1R + (rows - 1 + ahead)) // cols + 1)
    return jnp.stack([first_BR, end_BR], axis=-1)


def _extremes(segment_ids_BT: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Lowest and highest id in each block; of filler alone, the highest number and 0."""
    ids = segment_ids_BT.reshape(segment_ids_BT.shape[0], -1, size)
    low = jnp.min(jnp.where(ids > 0, ids, jnp.iinfo(jnp.int32).max), axis=-1)
    return low, jnp.max(ids, axis=-1)


# --- the kernels: T rows or columns of queries, S of keys; references have one row's and one head's


def _scores(spec: Spec, product: jax.Array, keep: jax.Array) -> tuple[jax.Array, Any]:
    """Scores in bits, and their slope against scale · q·k in nats (1 without a soft cap)."""
    if spec.softcap is None:
        return jnp.where(keep, product * (spec.scale * _LOG2_E), _MASKED), 1.0
    tanh = jnp.tanh(product * (spec.scale / spec.softcap))
    return jnp.where(keep, tanh * (spec.softcap * _LOG2_E), _MASKED), 1.0 - tanh * tanh


def _keep(spec: Spec, t, s, ids_of_t, ids_of_s) -> jax.Array:
    """Where queries `t` see keys `s`; one of both is a column, the other a row."""
    keep = (ids_of_t == ids_of_s) & (ids_of_t > 0)
    if spec.causal:
        keep &= s <= t
    if spec.window is not None:
        keep &= t - s < spec.window
        if not spec.causal:
            keep &= s - t < spec.window
    return keep


def _forward_kernel(visited, ids_T, ids_S, q_TH, k_SH, v_SH, o_TH, lse_T, *, spec, block):
    """One block of queries of one head."""
    t_T1 = _tokens(pl.program_id(0), block.rows)[:, None]
    q, ids_T1 = q_TH[...], ids_T[...][:, None]

    def visit(col, carry):
        max_T, sum_T, acc_TH = carry
        here = pl.ds(col * block.cols, block.cols)
        s_1S, ids_1S = _tokens(col, block.cols)[None, :], ids_S[here][None, :]
        keep = _keep(spec, t_T1, s_1S, ids_T1, ids_1S)
        score_TS, _ = _scores(spec, _dot(q, k_SH[here, :].T), keep)
        new_T = jnp.maximum(max_T, jnp.max(score_TS, axis=1))
        p_TS, shrunk_T = jnp.exp2(score_TS - new_T[:, None]), jnp.exp2(max_T - new_T)
        v = v_SH[here, :]
        acc_TH = acc_TH * shrunk_T[:, None] + _dot(p_TS.astype(v.dtype), v)
        return new_T, sum_T * shrunk_T + jnp.sum(p_TS, axis=1), acc_TH

    nothing = (
        jnp.full((block.rows,), _FLOOR, jnp.float32),
        jnp.zeros((block.rows,), jnp.float32),
        jnp.zeros((block.rows, v_SH.shape[-1]), jnp.float32),
    )
    max_T, sum_T, acc_TH = lax.fori_loop(visited[0], visited[1], visit, nothing)
    sum_T = jnp.maximum(sum_T, _TINY)
    o_TH[...] = (acc_TH / sum_T[:, None]).astype(o_TH.dtype)
    lse_T[...] = max_T + jnp.log2(sum_T)


def _of_queries_kernel(
    visited, ids_T, ids_S, q_TH, k_SH, v_SH, do_TH, do_dot_o_T, lse_T, dq_TH, *, spec, block
):
    """The gradient of one block of queries of one head."""
    t_T1 = _tokens(pl.program_id(0), block.rows)[:, None]
    q, do, ids_T1 = q_TH[...], do_TH[...], ids_T[...][:, None]
    lse_T1, do_dot_o_T1 = lse_T[...][:, None], do_dot_o_T[...][:, None]

    def visit(col, dq):
        here = pl.ds(col * block.cols, block.cols)
        s_1S, ids_1S = _tokens(col, block.cols)[None, :], ids_S[here][None, :]
        k, keep = k_SH[here, :], _keep(spec, t_T1, s_1S, ids_T1, ids_1S)
        score_TS, slope_TS = _scores(spec, _dot(q, k.T), keep)
        dp_TS = _dot(do, v_SH[here, :].T)
        ds_TS = jnp.exp2(score_TS - lse_T1) * (dp_TS - do_dot_o_T1) * slope_TS
        return dq + _dot(ds_TS.astype(k.dtype), k)

    dq = lax.fori_loop(visited[0], visited[1], visit, jnp.zeros(q_TH.shape, jnp.float32))
    dq_TH[...] = (dq * spec.scale).astype(dq_TH.dtype)


def _of_keys_kernel(
    visited, ids_S, ids_T, q_TGH, k_SH, v_SH, do_TGH, do_dot_o_GT, lse_GT, dk_SH, dv_SH,
    *, spec, block,
):  # fmt: skip
    """The gradients of one block of keys and values, from all query heads that share them."""
    s_S1 = _tokens(pl.program_id(0), block.rows)[:, None]
    k, v, ids_S1 = k_SH[...], v_SH[...], ids_S[...][:, None]

    def of_head(head, grads):
        def visit(col, grads):
            dk, dv = grads
            here = pl.ds(col * block.cols, block.cols)
            t_1T, ids_1T = _tokens(col, block.cols)[None, :], ids_T[here][None, :]
            q, do = q_TGH[here, head, :], do_TGH[here, head, :]
            lse_1T, do_dot_o_1T = lse_GT[head, here][None, :], do_dot_o_GT[head, here][None, :]
            keep = _keep(spec, t_1T, s_S1, ids_1T, ids_S1)
            score_ST, slope_ST = _scores(spec, _dot(k, q.T), keep)
            p_ST = jnp.exp2(score_ST - lse_1T)
            ds_ST = p_ST * (_dot(v, do.T) - do_dot_o_1T) * slope_ST
            return dk + _dot(ds_ST.astype(q.dtype), q), dv + _dot(p_ST.astype(do.dtype), do)

        return lax.fori_loop(visited[0], visited[1], visit, grads)

    nothing = jnp.zeros(k_SH.shape, jnp.float32), jnp.zeros(v_SH.shape, jnp.float32)
    dk, dv = lax.fori_loop(0, q_TGH.shape[1], of_head, nothing)
    dk_SH[...] = (dk * spec.scale).astype(dk_SH.dtype)
    dv_SH[...] = dv.astype(dv_SH.dtype)


def _tokens(block: jax.Array, size: int) -> jax.Array:
    """Indices of the tokens of a block."""
    return block * size + jnp.arange(size, dtype=jnp.int32)


def _dot(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Product in float32; of float32, in full."""
    precision = lax.Precision.HIGHEST if lhs.dtype == jnp.float32 else None
    return jnp.dot(lhs, rhs, preferred_element_type=jnp.float32, precision=precision)


# --- their grids: (blocks of rows, heads, rows of the batch) ---


def _run_forward(spec, ids_BT, q, k, v):
    block, at = spec.blocks.forward, _Layout(q, k)
    rows, one = block.rows, (None, None, block.rows)
    o_BTNH = jax.ShapeDtypeStruct((*q.shape[:3], v.shape[-1]), q.dtype)
    lse_BNT = jax.ShapeDtypeStruct((q.shape[0], q.shape[2], q.shape[1]), jnp.float32)
    return _call(
        _forward_kernel, spec, block, at.grid(q, rows),
        in_specs=[at.visited(), at.ids(rows), at.all_ids(), at.heads(q, rows),
                  at.shared(k), at.shared(v)],
        out_specs=[at.heads(o_BTNH, rows), pl.BlockSpec(one, lambda i, n, b: (b, n, i))],
        out_shape=[o_BTNH, lse_BNT],
    )(visited(spec, ids_BT, rows, block.cols), ids_BT, ids_BT, q, k, v)  # fmt: skip


def _run_of_queries(spec, ids_BT, q, k, v, do, do_dot_o_BNT, lse_BNT):
    block, at = spec.blocks.of_queries, _Layout(q, k)
    rows = block.rows
    of_token = pl.BlockSpec((None, None, rows), lambda i, n, b: (b, n, i))
    return _call(
        _of_queries_kernel, spec, block, at.grid(q, rows),
        in_specs=[at.visited(), at.ids(rows), at.all_ids(), at.heads(q, rows), at.shared(k),
                  at.shared(v), at.heads(do, rows), of_token, of_token],
        out_specs=at.heads(q, rows),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
    )(visited(spec, ids_BT, rows, block.cols), ids_BT, ids_BT, q, k, v, do,
      do_dot_o_BNT, lse_BNT)  # fmt: skip


def _run_of_keys(spec, ids_BT, q, k, v, do, do_dot_o_BNT, lse_BNT):
    block, at = spec.blocks.of_keys, _Layout(q, k)
    rows, length, group = block.rows, q.shape[1], at.group
    of_group = pl.BlockSpec((None, group, length), lambda i, n, b: (b, n, 0))

    def queries(x: jax.Array) -> pl.BlockSpec:
        return pl.BlockSpec((None, length, group, x.shape[-1]), lambda i, n, b: (b, 0, n, 0))

    return _call(
        _of_keys_kernel, spec, block, at.grid(k, rows),
        in_specs=[at.visited(), at.ids(rows), at.all_ids(), queries(q), at.heads(k, rows),
                  at.heads(v, rows), queries(do), of_group, of_group],
        out_specs=[at.heads(k, rows), at.heads(v, rows)],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (k, v)],
    )(visited(spec, ids_BT, rows, block.cols, of_keys=True), ids_BT, ids_BT, q, k, v, do,
      do_dot_o_BNT, lse_BNT)  # fmt: skip


class _Layout:
    """Where in the arrays the program of block i, head n and row b finds its parts."""

    def __init__(self, q_BTNH: jax.Array, k_BTKH: jax.Array):
        self.length, self.group = q_BTNH.shape[1], q_BTNH.shape[2] // k_BTKH.shape[2]

    def grid(self, x_BTNH: jax.Array, rows: int) -> tuple[int, int, int]:
        return self.length // rows, x_BTNH.shape[2], x_BTNH.shape[0]

    def visited(self) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, 2), lambda i, n, b: (b, i, 0))

    def ids(self, rows: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, rows), lambda i, n, b: (b, i))

    def all_ids(self) -> pl.BlockSpec:
        return pl.BlockSpec((None, self.length), lambda i, n, b: (b, 0))

    def heads(self, x_BTNH: Any, rows: int) -> pl.BlockSpec:
        """A block of the program's own head."""
        return pl.BlockSpec((None, rows, None, x_BTNH.shape[-1]), lambda i, n, b: (b, i, n, 0))

    def shared(self, x_BTKH: jax.Array) -> pl.BlockSpec:
        """All tokens of the head of keys or values that a query head shares."""
        shape = (None, self.length, None, x_BTKH.shape[-1])
        return pl.BlockSpec(shape, lambda i, n, b: (b, 0, n // self.group, 0))


def _call(kernel: Callable, spec: Spec, block: Block, grid: tuple[int, ...], **where: Any):
    return pl.pallas_call(
        functools.partial(kernel, spec=spec, block=block),
        grid=grid,
        compiler_params=pltriton.CompilerParams(
            num_warps=block.num_warps, num_stages=block.num_stages
        ),
        interpret=spec.interpret,
        name=kernel.__name__.strip("_"),
        **where,
    )
