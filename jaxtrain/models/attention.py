"""Attention over a row of tokens, and which implementation computes it.

    xla      jax.nn.dot_product_attention as plain XLA in float32: O(T²) memory; the reference
    cudnn    the same function by cuDNN's flash kernel: NVIDIA GPUs, half precision, one document
             per row
    chunked  here: O(T) memory on every platform, documents isolated, soft cap

`choose` settles "auto" before anything is compiled and says why, for the start-up report. What a
token sees goes by its index in the row (causal, window) and by its segment; positions only matter
to RoPE, outside.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, Int

from jaxtrain.models import chunked_attention

#: The name under which remat policies can keep what the backward pass needs of the forward pass.
SAVED_NAME = chunked_attention.SAVED_NAME

_CUDNN_HEAD_DIM = 128
_CUDNN_HEAD_DIM_FROM_HOPPER = 256


def attend(
    q_BTNH: Float[jax.Array, "B T N H"],
    k_BSKH: Float[jax.Array, "B S K H"],
    v_BSKH: Float[jax.Array, "B S K H"],
    *,
    segment_ids_BT: Int[jax.Array, "B T"] | None,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float,
    implementation: str,
    block: int,
) -> Float[jax.Array, "B T N H"]:
    """softmax(cap(scale · q·k) + mask) · v within each row; N / K query heads share a k/v head.

    Scores and softmax are float32 whatever the dtype of the inputs.

    Args:
      segment_ids_BT: a token sees its own segment only; filler (0) sees nothing and is seen by
        nothing: its output and its gradients are exactly 0. None: each row is one segment.
      causal: a token sees itself and what is before it.
      window: a token sees at most this many tokens up to itself (not causal: to each side, itself
        counted on both). None: no limit.
      softcap: scores become cap · tanh(score / cap). None: off.
      implementation: a name that `choose` returned.
      block: tokens per block of "chunked".
    """
    if q_BTNH.shape[1] != k_BSKH.shape[1]:
        raise ValueError(
            f"attention within a row: q {q_BTNH.shape} and k {k_BSKH.shape} must be equally long."
        )
    if implementation == "chunked":
        spec = chunked_attention.Spec(causal, window, softcap, scale, block)
        return chunked_attention.attend(spec, q_BTNH, k_BSKH, v_BSKH, segment_ids_BT)
    if implementation not in ("xla", "cudnn"):
        raise ValueError(f"implementation={implementation!r} must be xla, cudnn or chunked.")
    isolated = segment_ids_BT is not None
    if softcap is not None or (isolated and implementation == "cudnn"):
        raise ValueError(f"{implementation} attention has no soft cap, and cudnn no segments.")
    reach = None if window is None else (window - 1, 0 if causal else window - 1)
    inputs = (q_BTNH, k_BSKH, v_BSKH)
    if implementation == "xla":
        # All in float32, and float32 in full on GPUs: this one is for being right. (JAX's own form
        # for bfloat16 has a gradient that fails under strict dtype promotion.)
        inputs = tuple(x.astype(jnp.float32) for x in inputs)
    with jax.default_matmul_precision("highest" if implementation == "xla" else None):
        o_BTNH = jax.nn.dot_product_attention(
            *inputs,
            mask=_same_segment(segment_ids_BT) if isolated else None,
            scale=scale,
            is_causal=causal,
            local_window_size=reach,
            implementation=implementation,
        ).astype(q_BTNH.dtype)
    if isolated:  # a softmax over nothing is uniform: filler would be the mean of everything
        o_BTNH = jnp.where((segment_ids_BT > 0)[:, :, None, None], o_BTNH, jnp.zeros_like(o_BTNH))
    return checkpoint_name(o_BTNH, SAVED_NAME)


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
    if implementation == "auto":
        if not obstacles:
            return "cudnn", "cuDNN flash attention"
        return "chunked", f"O(T) memory in plain XLA; cuDNN flash attention {_joined(obstacles)}"
    if implementation == "cudnn" and obstacles:
        raise ValueError(
            f"attention='cudnn' cannot be used: it {_joined(obstacles)}; set attention='auto'."
        )
    if implementation == "xla" and softcap is not None:
        raise ValueError(
            "attention='xla' cannot be used: it has no soft cap "
            f"(attention_softcap={softcap}); set attention='auto'."
        )
    if implementation not in ("cudnn", "chunked", "xla"):
        raise ValueError(f"attention={implementation!r} must be auto, cudnn, chunked or xla.")
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
        f"needs an NVIDIA GPU (running on {platform})": platform not in ("gpu", "cuda"),
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


def _joined(reasons: Sequence[str]) -> str:
    return ", ".join(reasons)


def _same_segment(segment_ids_BT: jax.Array) -> jax.Array:
    """True where query and key are in one document: [B, 1, T, S]."""
    q_B1T1, k_B11S = segment_ids_BT[:, None, :, None], segment_ids_BT[:, None, None, :]
    return (q_B1T1 == k_B11S) & (q_B1T1 > 0)
