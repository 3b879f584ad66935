"""Attention over a row of tokens, and which implementation computes it.

    xla      jax.nn.dot_product_attention as plain XLA in float32: O(T²) memory; the reference
    cudnn    the same function by cuDNN's flash kernel: NVIDIA GPUs, half precision, one document
             per row
    pallas   our own flash kernel: NVIDIA GPUs, all that cuDNN lacks (`kernels.flash_attention`)
    chunked  here: O(T) memory on every platform, all of that too, in plain XLA

`attend_cached` is for decoding: one query for each row.

`choose` settles "auto" before anything is compiled and says why, for the start-up report. What a
token sees goes by its index in the row (causal, window) and by its segment; positions only matter
to RoPE, outside.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Bool, Float, Int

from jaxtrain.kernels import blocks, flash_attention
from jaxtrain.models import chunked_attention
from jaxtrain.parallel.sharding import ACTIVATIONS, fitting

#: The name under which remat policies can keep what the backward pass needs of the forward pass.
SAVED_NAME = chunked_attention.SAVED_NAME

#: Implementations that `jax.nn.dot_product_attention` has.
_OF_JAX: Mapping[str, Literal["xla", "cudnn"]] = {"xla": "xla", "cudnn": "cudnn"}
_NVIDIA = ("gpu", "cuda")
_CUDNN_HEAD_DIM = 128
_CUDNN_HEAD_DIM_FROM_HOPPER = 256


def attend(
    q_BTNH: Float[jax.Array, "B T N H"],
    k_BSKH: Float[jax.Array, "B S K H"],
    v: Float[jax.Array, "B S K _"],
    *,
    sinks_N: Float[jax.Array, "N"] | None = None,
    segment_ids_BT: Int[jax.Array, "B T"] | None,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float,
    implementation: str,
    block: int,
    mesh: Mesh | None = None,
) -> Float[jax.Array, "B T N _"]:
    """softmax(cap(scale · q·k) + mask) · v within each row; N / K query heads share a k/v head.

    Scores and softmax are float32 whatever the dtype of the inputs. Values may have another head
    size than queries and keys; it is that of the output.

    Args:
      sinks_N: a score for each head that joins its softmax as if of one more key, whose value is 0
        (GPT-OSS, arXiv 2508.10925; after Xiao et al. 2023, arXiv 2309.17453). None: no such.
      segment_ids_BT: a token sees its own segment only; filler (0) sees nothing and is seen by
        nothing: its output and its gradients are exactly 0. None: each row is one segment.
      causal: a token sees itself and what is before it.
      window: a token sees at most this many tokens up to itself (not causal: to each side, itself
        counted on both). None: no limit.
      softcap: scores become cap · tanh(score / cap). None: off.
      implementation: a name that `choose` returned.
      block: tokens per block of "chunked".
      mesh: that the arrays lie on, for "pallas"; None: one device.
    """
    if q_BTNH.shape[1] != k_BSKH.shape[1]:
        raise ValueError(
            f"attention within a row: q {q_BTNH.shape} and k {k_BSKH.shape} must be equally long."
        )
    if implementation == "chunked":
        spec = chunked_attention.Spec(causal, window, softcap, scale, block)
        return chunked_attention.attend(spec, q_BTNH, k_BSKH, v, segment_ids_BT, sinks_N)
    if implementation == "pallas":
        return _by_kernel(
            mesh, q_BTNH, k_BSKH, v, segment_ids_BT, sinks_N,
            causal=causal, window=window, softcap=softcap, scale=scale,
        )  # fmt: skip
    if implementation not in _OF_JAX:
        raise ValueError(
            f"implementation={implementation!r} must be xla, cudnn, pallas or chunked."
        )
    return _by_jax(
        _OF_JAX[implementation], q_BTNH, k_BSKH, v, segment_ids_BT, sinks_N,
        causal=causal, window=window, softcap=softcap, scale=scale,
    )  # fmt: skip


def attend_cached(
    q_BNH: Float[jax.Array, "B N H"],
    k_BKSH: Float[jax.Array, "B K S H"],
    v: Float[jax.Array, "B K S _"],
    visible_BS: Bool[jax.Array, "B S"],
    *,
    scale: float,
    softcap: float | None,
    sinks_N: Float[jax.Array, "N"] | None = None,
) -> Float[jax.Array, "B N _"]:
    """One query for each row on the keys and values that a cache holds of it.

    Scores and softmax are float32. Values may have another head size than keys.
    """
    num_kv_heads = k_BKSH.shape[1]
    q_BKGH = q_BNH.reshape(q_BNH.shape[0], num_kv_heads, -1, q_BNH.shape[-1])
    # By default an NVIDIA GPU multiplies float32 in TF32.
    precision = jax.lax.Precision.HIGHEST if q_BNH.dtype == jnp.float32 else None
    score_BKGS = jnp.einsum(
        "BKGH,BKSH->BKGS",
        q_BKGH,
        k_BKSH,
        preferred_element_type=jnp.float32,
        precision=precision,
    )
    score_BKGS = score_BKGS * scale
    if softcap is not None:
        score_BKGS = softcap * jnp.tanh(score_BKGS / softcap)
    score_BKGS = jnp.where(visible_BS[:, None, None, :], score_BKGS, -jnp.inf)
    if sinks_N is not None:
        sink_BKG1 = jnp.broadcast_to(
            sinks_N.reshape(1, num_kv_heads, -1, 1), (*score_BKGS.shape[:3], 1)
        )
        score_BKGS = jnp.concatenate([score_BKGS, sink_BKG1], axis=-1)
    weight_BKGS = jax.nn.softmax(score_BKGS, axis=-1)[..., : k_BKSH.shape[2]]
    out_BKGH = jnp.einsum(
        "BKGS,BKSH->BKGH", weight_BKGS.astype(q_BNH.dtype), v, precision=precision
    )
    return out_BKGH.reshape(*q_BNH.shape[:2], -1)


def choose(
    implementation: str,
    platform: str,
    *,
    isolated: bool,
    head_dim: int,
    dtype: jnp.dtype | type,
    softcap: float | None,
    window: int | None,
    causal: bool = True,
    sinks: bool = False,
) -> tuple[str, str]:
    """The implementation that `model.attention` means here, and the reason in one line.

    Args:
      implementation: "auto", or a name that must then be usable.
      platform: what the program is compiled for, as in `jax.default_backend()`.
      isolated: whether batches carry segment ids.
      dtype: of the activations.

    Raises:
      ValueError: if the config asks for an implementation that cannot be used.
    """
    limit = _CUDNN_HEAD_DIM if implementation == "auto" else _CUDNN_HEAD_DIM_FROM_HOPPER
    obstacles = _cudnn_obstacles(
        platform, isolated, head_dim, limit, jnp.dtype(dtype), softcap, window, causal
    )
    if sinks:
        obstacles = [*obstacles, "has no sinks (attention_sinks=True)"]
    of_ours = _kernel_obstacles(platform, head_dim, jnp.dtype(dtype))
    if implementation == "auto":
        if not obstacles:
            return "cudnn", "cuDNN flash attention"
        why = f"cuDNN flash attention {_joined(obstacles)}"
        if not of_ours:  # not taken by itself as long as no GPU has run it
            why += "; attention='pallas' asks for our own kernel, which no GPU has run yet"
        return "chunked", f"O(T) memory in plain XLA; {why}"
    if implementation == "pallas" and of_ours:
        raise ValueError(
            f"attention='pallas' cannot be used: it {_joined(of_ours)}; set attention='auto'."
        )
    if implementation == "cudnn" and obstacles:
        raise ValueError(
            f"attention='cudnn' cannot be used: it {_joined(obstacles)}; set attention='auto'."
        )
    if implementation == "xla" and softcap is not None:
        raise ValueError(
            "attention='xla' cannot be used: it has no soft cap "
            f"(attention_softcap={softcap}); set attention='auto'."
        )
    if implementation not in ("cudnn", "pallas", "chunked", "xla"):
        raise ValueError(
            f"attention={implementation!r} must be auto, cudnn, pallas, chunked or xla."
        )
    return implementation, "asked for by the config"


def _cudnn_obstacles(
    platform: str,
    isolated: bool,
    head_dim: int,
    head_dim_limit: int,
    dtype: jnp.dtype,
    softcap: float | None,
    window: int | None,
    causal: bool,
) -> Sequence[str]:
    """Why cuDNN's kernel cannot be used; empty if it can."""
    checks = {
        f"needs an NVIDIA GPU (running on {platform})": platform not in _NVIDIA,
        f"needs bfloat16 or float16 (precision gives {dtype.name})": dtype
        not in (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)),
        "does not isolate packed documents": isolated,
        f"needs heads of a multiple of 8 up to {head_dim_limit} (head_dim={head_dim})": (
            head_dim % 8 != 0 or head_dim > head_dim_limit
        ),
        f"has no soft cap (attention_softcap={softcap})": softcap is not None,
        f"has a window only to the left (window={window}, bidirectional)": (
            window is not None and not causal
        ),
    }
    return [reason for reason, applies in checks.items() if applies]


def _kernel_obstacles(platform: str, head_dim: int, dtype: jnp.dtype) -> Sequence[str]:
    """Why our own kernel cannot be used; empty if it can."""
    formats = [jnp.dtype(each) for each in (jnp.bfloat16, jnp.float16, jnp.float32)]
    checks = {
        f"needs an NVIDIA GPU (running on {platform})": platform not in _NVIDIA,
        f"needs {' or '.join(x.name for x in formats)} (precision gives {dtype.name})": (
            dtype not in formats
        ),
        f"needs heads of up to {blocks.MAX_HEAD_DIM} (head_dim={head_dim})": (
            head_dim > blocks.MAX_HEAD_DIM
        ),
    }
    return [reason for reason, applies in checks.items() if applies]


def _by_jax(
    implementation: Literal["xla", "cudnn"],
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v: jax.Array,
    segment_ids_BT: jax.Array | None,
    sinks_N: jax.Array | None,
    *,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float,
) -> jax.Array:
    """By `jax.nn.dot_product_attention`, "xla" or "cudnn"."""
    isolated = segment_ids_BT is not None
    if softcap is not None or (isolated and implementation == "cudnn"):
        raise ValueError(f"{implementation} attention has no soft cap, and cudnn no segments.")
    if sinks_N is not None and implementation == "cudnn":
        raise ValueError("cudnn attention has no sinks.")
    short = q_BTNH.shape[-1] - v.shape[-1]  # these two take values of the same size only
    v_BSKH = jnp.pad(v, ((0, 0), (0, 0), (0, 0), (0, short))) if short else v
    inputs, dtype = (q_BTNH, k_BSKH, v_BSKH), q_BTNH.dtype
    if implementation == "xla":
        # All in float32, and float32 in full on GPUs: this one is for being right. (JAX's own form
        # for bfloat16 has a gradient that fails under strict dtype promotion.)
        q_BTNH, k_BSKH, v_BSKH = (x.astype(jnp.float32) for x in inputs)
    mask = _same_segment(segment_ids_BT) if isolated else None
    with jax.default_matmul_precision("highest" if implementation == "xla" else None):
        if sinks_N is None:
            reach = None if window is None else (window - 1, 0 if causal else window - 1)
            o_BTNH = jax.nn.dot_product_attention(
                q_BTNH,
                k_BSKH,
                v_BSKH,
                mask=mask,
                scale=scale,
                is_causal=causal,
                local_window_size=reach,
                implementation=implementation,
            )
        else:
            o_BTNH = _with_sinks(q_BTNH, k_BSKH, v_BSKH, sinks_N, mask, causal, window, scale)
    o_BTNH = o_BTNH[..., : v.shape[-1]].astype(dtype)
    if isolated:  # a softmax over nothing is uniform: filler would be the mean of everything
        o_BTNH = jnp.where((segment_ids_BT > 0)[:, :, None, None], o_BTNH, jnp.zeros_like(o_BTNH))
    return checkpoint_name(o_BTNH, SAVED_NAME)


def _by_kernel(
    mesh: Mesh | None,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v: jax.Array,
    segment_ids_BT: jax.Array | None,
    sinks_N: jax.Array | None,
    **what: Any,
) -> jax.Array:
    """Our own kernel, on each device the rows and heads that it has: XLA cannot split a kernel."""
    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    head_dim = max(q_BTNH.shape[-1], v.shape[-1])
    sizes = blocks.flash_attention(device, head_dim, q_BTNH.dtype.itemsize)
    run = functools.partial(flash_attention.attend, flash_attention.Spec(**what, blocks=sizes))
    if mesh is None or mesh.size == 1:
        return run(q_BTNH, k_BSKH, v, segment_ids_BT, sinks_N)
    # Query heads lie with the k/v head that they share.
    batch, _, heads, _ = fitting(ACTIVATIONS["BTKH"], k_BSKH.shape, mesh)
    whole_rows = PartitionSpec(batch, None, heads, None)
    spread = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(whole_rows, whole_rows, whole_rows, PartitionSpec(batch), PartitionSpec(heads)),
        out_specs=whole_rows,
        check_vma=False,  # a kernel does not say over which axes its results vary
    )
    return spread(q_BTNH, k_BSKH, v, segment_ids_BT, sinks_N)


def _with_sinks(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    sinks_N: jax.Array,
    mask: jax.Array | None,
    causal: bool,
    window: int | None,
    scale: float,
) -> jax.Array:
    """The sinks as scores of one more key, which everyone sees."""
    length = q_BTNH.shape[1]
    behind = np.arange(length)[:, None] - np.arange(length)[None, :]
    sees = behind >= 0 if causal else np.ones_like(behind, bool)
    if window is not None:
        sees &= np.abs(behind) < window
    seen_B1TS = jnp.asarray(sees)[None, None] if mask is None else mask & sees[None, None]
    end = ((0, 0), (0, 0), (0, 0), (0, 1))
    one_more = ((0, 0), (0, 1), (0, 0), (0, 0))
    bias_1N1S = jnp.pad(sinks_N[None, :, None, None], ((0, 0), (0, 0), (0, 0), (length, 0)))
    bias_1NTS = jnp.broadcast_to(bias_1N1S, (1, sinks_N.shape[0], length, length + 1))
    return jax.nn.dot_product_attention(
        q_BTNH,
        jnp.pad(k_BSKH, one_more),
        jnp.pad(v_BSKH, one_more),
        bias=bias_1NTS,
        mask=jnp.pad(seen_B1TS, end, constant_values=True),
        scale=scale,
        implementation="xla",
    )


def _joined(reasons: Sequence[str]) -> str:
    return ", ".join(reasons)


def _same_segment(segment_ids_BT: jax.Array) -> jax.Array:
    """True where query and key are in one document: [B, 1, T, S]."""
    q_B1T1, k_B11S = segment_ids_BT[:, None, :, None], segment_ids_BT[:, None, None, :]
    return (q_B1T1 == k_B11S) & (q_B1T1 > 0)
