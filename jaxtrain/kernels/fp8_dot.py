"""A product of FP8 blocks on FP8 tensor cores, inside of a Pallas kernel for Triton.

`jnp.dot` does not get there: Pallas refuses operands of two formats, and asks Triton for sums in
full float32, which Hopper's FP8 instructions do not give, so that Triton converts both operands to
float16. `fp8_dot` is Triton's own product without the two restrictions. Hopper sums up with about
14 bits of mantissa (DeepSeek-V3, arXiv 2412.19437, section 3.3.2); callers multiply a few terms at
a time and add up in float32.

This is the one place that uses JAX's private lowering to Triton; where a version of JAX has another
one, FP8 kernels fail to compile, and nothing else does.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive

#: The fewest terms that an FP8 instruction sums over.
LEAST_TERMS = 32


def fp8_dot(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """[rows, terms] · [terms, columns] in float32, of FP8 operands of any two formats."""
    return _primitive().bind(lhs, rhs)


@functools.cache
def _primitive() -> Primitive:
    try:
        from jax._src.pallas.triton import lowering  # only where it is needed: see above
    except ImportError as error:
        raise ValueError(
            f"FP8 kernels know how jax 0.10 to 0.12 lower to Triton, and jax {jax.__version__} has "
            "another way; install one of these, or set config.precision.recipe=bfloat16."
        ) from error

    primitive = Primitive("fp8_dot")

    def abstract(lhs: Any, rhs: Any) -> ShapedArray:
        return ShapedArray((lhs.shape[0], rhs.shape[1]), jnp.float32)

    def lower(ctx: Any, lhs: Any, rhs: Any) -> Any:
        del ctx
        ir = lowering.ir
        rows, terms = ir.RankedTensorType(lhs.type).shape
        columns = ir.RankedTensorType(rhs.type).shape[1]
        zeros = lowering._zeros(ir.RankedTensorType.get([rows, columns], ir.F32Type.get()))
        return lowering.tt_dialect.dot(lhs, rhs, zeros, max_num_imprecise_acc=terms)

    primitive.def_abstract_eval(abstract)
    lowering.register_lowering(primitive)(lower)
    return primitive
