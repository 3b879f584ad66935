"""Our flash attention kernel on this device: right, repeatable, faster than what it replaces."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpu_check import differences, timing
from gpu_check.checks import Checks
from gpu_check.machine import Machine
from jaxtrain.kernels import blocks, flash_attention
from jaxtrain.kernels.blocks import Block, FlashBlocks
from jaxtrain.models import attention

#: Roundings to 8 bits of mantissa of a few factors, or float32 sums of some hundred terms.
BOUNDS = {jnp.bfloat16: 2.0**-6, jnp.float32: 2e-5}
_NAMES = ("output", "d_q", "d_k", "d_v")


@dataclasses.dataclass(frozen=True)
class Shape:
    """Rows of a batch and their heads."""

    rows: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    documents: int | None = None  # in a row; None: it is one

    def arrays(self, dtype: Any) -> list[jax.Array]:
        """Queries, keys, values, and the gradient of the output."""
        heads = (self.heads, self.kv_heads, self.kv_heads, self.heads)
        return [
            jax.random.normal(
                jax.random.key(i), (self.rows, self.length, n, self.head_dim), jnp.float32
            ).astype(dtype)
            for i, n in enumerate(heads)
        ]

    def segment_ids(self) -> jax.Array | None:
        """Documents one after the other, with some filler at the end of the first row."""
        if self.documents is None:
            return None
        ids = np.arange(self.length) * self.documents // self.length + 1
        rows = np.tile(ids.astype(np.int32), (self.rows, 1))
        rows[0, -self.length // 20 :] = 0
        return jnp.asarray(rows)


#: What is compared with the reference: shape, dtype and what attention is asked for.
FULL_CASES: Mapping[str, tuple[Shape, Any, Mapping[str, Any]]] = {
    "documents": (Shape(2, 1000, 8, 2, 128, 5), jnp.bfloat16, {}),
    "window and soft cap": (
        Shape(2, 1000, 8, 2, 128, 5), jnp.bfloat16, {"window": 200, "softcap": 20.0}),
    "both sides": (Shape(2, 1000, 8, 8, 64, 3), jnp.bfloat16, {"causal": False}),
    "float32": (Shape(1, 500, 4, 2, 64, 3), jnp.float32, {}),
}  # fmt: skip
DRY_CASES: Mapping[str, tuple[Shape, Any, Mapping[str, Any]]] = {
    "documents": (Shape(2, 40, 2, 1, 16, 3), jnp.bfloat16, {"window": 9}),
}
_DRY_BLOCKS = FlashBlocks(Block(16, 16, 4, 2), Block(16, 16, 4, 2), Block(16, 16, 4, 2))
#: What is timed: as in training, rows of one document and of several.
FULL_TIMED = {
    "one document": Shape(4, 4096, 16, 8, 128),
    "8 documents": Shape(4, 4096, 16, 8, 128, 8),
}
DRY_TIMED = {"3 documents": Shape(2, 40, 2, 1, 16, 3)}
#: Both forms round to 2^-9 in other places.
_MOST_APART = 0.02
_BLOCK = 512  # of the chunked form


def run(machine: Machine, checks: Checks) -> dict[str, Any]:
    """Compares every case with plain XLA in float32, then times the forms that a row may take."""
    for name, (shape, dtype, options) in (DRY_CASES if machine.is_dry else FULL_CASES).items():
        _compare(machine, name, shape, dtype, options, checks)
    timed = DRY_TIMED if machine.is_dry else FULL_TIMED
    return {name: _time(machine, name, shape, checks) for name, shape in timed.items()}


def _compare(
    machine: Machine,
    name: str,
    shape: Shape,
    dtype: Any,
    options: Mapping[str, Any],
    checks: Checks,
) -> None:
    arrays, ids = shape.arrays(dtype), shape.segment_ids()
    kernel = both_passes(form("pallas", machine, shape, dtype, **options))
    found = kernel(*arrays, ids)
    again = kernel(*arrays, ids)
    reference = both_passes(form("xla", machine, shape, dtype, **options))
    if options.get("softcap"):
        reference = both_passes(_softcapped(shape, **options))
    expected = reference(*(x.astype(jnp.float32) for x in arrays), ids)
    errors = {n: differences.largest_error(*pair) for n, *pair in zip(_NAMES, found, expected,
                                                                   strict=True)}  # fmt: skip
    checks.expect(
        f"flash attention, {name}, equals plain XLA in float32",
        max(errors.values()) <= BOUNDS[dtype],
        f"{', '.join(f'{n} {e:.1e}' for n, e in errors.items())}; at most {BOUNDS[dtype]:.1e}",
    )
    checks.expect(
        f"flash attention, {name}, gives the same bits twice", differences.same_bits(found, again),
        "compared bit for bit",
    )  # fmt: skip


def form(
    implementation: str, machine: Machine, shape: Shape, dtype: Any, **options: Any
) -> Callable[..., jax.Array]:
    """Attention of (q, k, v, segment ids) by an implementation."""
    asked = {"causal": True, "window": None, "softcap": None, **options}
    scale = shape.head_dim**-0.5
    if implementation == "pallas":
        sizes = (
            _DRY_BLOCKS
            if machine.is_dry
            else blocks.flash_attention(machine.device, shape.head_dim, jnp.dtype(dtype).itemsize)
        )
        spec = flash_attention.Spec(**asked, scale=scale, blocks=sizes, interpret=machine.is_dry)
        return functools.partial(flash_attention.attend, spec)
    return lambda q, k, v, ids: attention.attend(
        q, k, v, segment_ids_BT=ids, scale=scale, implementation=implementation, block=_BLOCK,
        **asked,
    )  # fmt: skip


def _softcapped(shape: Shape, *, softcap: float, window: int | None = None, causal: bool = True):
    """Soft-capped attention with all scores: the plain form in `attention.py` has no soft cap."""

    def attend(q, k, v, ids):
        group = shape.heads // shape.kv_heads
        k, v = jnp.repeat(k, group, axis=2), jnp.repeat(v, group, axis=2)
        scores = jnp.einsum("btnh,bsnh->bnts", q, k, precision="highest") * shape.head_dim**-0.5
        t, s = jnp.arange(shape.length)[:, None], jnp.arange(shape.length)[None, :]
        keep = (s <= t) if causal else jnp.ones_like(s <= t)
        if window is not None:
            keep &= abs(t - s) < window
        keep = keep[None] & (ids[:, :, None] == ids[:, None, :]) & (ids > 0)[:, :, None]
        capped = softcap * jnp.tanh(scores / softcap)
        p = jax.nn.softmax(jnp.where(keep[:, None], capped, -1e30), axis=-1)
        p = jnp.where(keep[:, None], p, 0.0)
        return jnp.einsum("bnts,bsnh->btnh", p, v, precision="highest")

    return attend


def both_passes(attend: Callable[..., jax.Array]) -> Callable:
    """A jitted function of q, k, v, d_o and segment ids: output and gradients."""

    @jax.jit
    def run(q, k, v, do, ids):
        out, pull = jax.vjp(lambda q, k, v: attend(q, k, v, ids), q, k, v)
        return out, *pull(do)

    return run


def _time(machine: Machine, name: str, shape: Shape, checks: Checks) -> dict[str, float]:
    """Milliseconds of output and gradients by each form that the rows may take."""
    arrays = (*shape.arrays(jnp.bfloat16), shape.segment_ids())
    forms = ["pallas", "chunked"] + (["cudnn"] if shape.documents is None else [])
    runs = {each: both_passes(form(each, machine, shape, jnp.bfloat16)) for each in forms}
    results = {each: run(*arrays) for each, run in runs.items()}
    for each in forms[1:]:
        error = differences.overall_error(results["pallas"], results[each])
        checks.expect(
            f"flash attention, rows of {name}, equals {each}",
            error <= _MOST_APART,
            f"{error:.1e} apart, at most {_MOST_APART:.1e}",
        )
    checks.expect(
        f"flash attention, rows of {name}, gives the same bits twice",
        differences.same_bits(results["pallas"], runs["pallas"](*arrays)),
        "compared bit for bit",
    )
    found = {each: 1e3 * timing.seconds(run, arrays) for each, run in runs.items()}
    what = f"flash attention, rows of {name}, is faster than the chunked form"
    if machine.is_dry:
        checks.leave_out(what)
    else:
        times = ", ".join(f"{each} {ms:.3f} ms" for each, ms in found.items())
        checks.expect(what, found["pallas"] < found["chunked"], times)
    return {f"{each}_ms": ms for each, ms in found.items()}
