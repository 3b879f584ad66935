"""Precision recipes: the number formats of a run.

Master weights, norms, softmax, logits and losses are float32 under every recipe. A recipe decides
the dtype of activations and how a weight matmul multiplies; every weight matmul of the model goes
through `Recipe.dot_general`, or, where `Recipe.quantization` says so, through a product in fewer
bits (`fp8.py`) in its place.

The gradient of a weight is a product over all tokens, of which each device has some. What the
product puts out is what devices add up, so `Recipe.grad_reduce_dtype` is its dtype. A master weight
therefore goes into a product as it is, and is cast inside: were it cast before, its gradient would
be rounded to the compute dtype ahead of the sum.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from jaxtrain.options import option
from jaxtrain.precision.quantization import GRAD_ROUNDINGS, SCALINGS, Quantization
from jaxtrain.precision.tiled import FORMATS


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a model computes."""

    name: str
    compute_dtype: type  #: of activations; float32 weights are cast to it where they are used
    #: Called like `jax.lax.dot_general`, with `dimension_numbers` and `preferred_element_type`; the
    #: second operand may be a float32 weight, which is cast to the first one's dtype.
    dot_general: Callable[..., jax.Array]
    #: In which gradients of weights are added up over the mesh.
    grad_reduce_dtype: type = jnp.float32
    #: Of the products of a model in training; `get_recipe` leaves it out.
    quantization: Quantization | None = None
    scales_loss: bool = False  #: by `loss_scaling.py`


def _dot_general(
    lhs: jax.Array,
    rhs: jax.Array,
    dimension_numbers: lax.DotDimensionNumbers,
    preferred_element_type: jnp.dtype | type | None = None,
    *,
    precision: lax.Precision | None,
    grad_reduce_dtype: type = jnp.float32,
) -> jax.Array:
    """`lax.dot_general` of activations and weights, with a gradient of the weights of its own."""
    dot = functools.partial(
        lax.dot_general,
        dimension_numbers=dimension_numbers,
        preferred_element_type=preferred_element_type,
        precision=precision,
    )
    return _product(dot, grad_reduce_dtype, lhs, rhs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(
    dot: functools.partial, grad_reduce_dtype: type, lhs: jax.Array, rhs: jax.Array
) -> jax.Array:
    return dot(lhs, rhs.astype(lhs.dtype))


def _product_forward(dot, grad_reduce_dtype, lhs, rhs):
    del grad_reduce_dtype
    # Of the weight itself only its dtype is kept. What is cast is gathered from the mesh once: a
    # cast of its own in the backward pass would be gathered again.
    narrow = rhs.astype(lhs.dtype)
    return dot(lhs, narrow), (lhs, narrow, jnp.zeros((0,), rhs.dtype))


def _product_backward(dot, grad_reduce_dtype, operands, gradient):
    """d rhs = lhsᵀ · gradient, where JAX writes (gradientᵀ · lhs)ᵀ.

    XLA's CPU matmul transposes a left operand that is summed over its leading dimensions, which
    costs most for the larger of the two: JAX's order made a whole training step 1.3 times slower.
    """
    lhs, rhs, like_rhs = operands
    (of_lhs, of_rhs), (batch_lhs, batch_rhs) = dot.keywords["dimension_numbers"]
    free_lhs = [axis for axis in range(lhs.ndim) if axis not in (*of_lhs, *batch_lhs)]
    free_rhs = [axis for axis in range(rhs.ndim) if axis not in (*of_rhs, *batch_rhs)]
    batch = tuple(range(len(batch_lhs)))
    free_lhs_in_gradient = tuple(range(len(batch), len(batch) + len(free_lhs)))
    d_rhs = lax.dot_general(
        lhs,
        gradient,
        ((tuple(free_lhs), free_lhs_in_gradient), (batch_lhs, batch)),
        precision=dot.keywords["precision"],
        preferred_element_type=grad_reduce_dtype,
    ).astype(like_rhs.dtype)
    in_rhs = dict(zip(of_lhs, of_rhs, strict=True))
    axes = (*batch_rhs, *(in_rhs[axis] for axis in sorted(of_lhs)), *free_rhs)  # of d_rhs
    (d_lhs,) = jax.linear_transpose(lambda lhs: dot(lhs, rhs), lhs)(gradient)
    return d_lhs, d_rhs.transpose([axes.index(axis) for axis in range(rhs.ndim)])


_product.defvjp(_product_forward, _product_backward)


#: The recipes with products in fewer bits.
QUANTIZED = ("fp8", *FORMATS)
_GRAD_REDUCE_DTYPES: Mapping[str, type] = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}

_BFLOAT16 = Recipe("bfloat16", jnp.bfloat16, functools.partial(_dot_general, precision=None))

RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        # HIGHEST: by default an NVIDIA GPU multiplies float32 in TF32, with 10 bits of mantissa.
        Recipe(
            "float32",
            jnp.float32,
            functools.partial(_dot_general, precision=lax.Precision.HIGHEST),
        ),
        _BFLOAT16,
        dataclasses.replace(_BFLOAT16, name="float16", compute_dtype=jnp.float16, scales_loss=True),
        *(dataclasses.replace(_BFLOAT16, name=name) for name in QUANTIZED),
    )
}

#: The least compute capability whose matmuls take a recipe's formats.
_NEEDED: Mapping[str, tuple[int, int]] = {
    "fp8": (8, 9),
    "fp8_block": (8, 9),
    "mxfp8": (10, 0),
    "nvfp4": (10, 0),
}


@dataclasses.dataclass(frozen=True)
class PrecisionConfig:
    """Section `precision` of the config."""

    recipe: str = option(
        "bfloat16",
        "Format of activations and weight matmuls; master weights stay float32. float16 trains "
        "with a loss scale. fp8, fp8_block, mxfp8 and nvfp4 are bfloat16 with such matmuls in the "
        "blocks, in training alone.",
        choices=tuple(RECIPES),
    )
    scaling: str = option(
        "current",
        "fp8: a tensor's scale is from the tensor itself, or (delayed) from the largest magnitude "
        "of the last 16 updates.",
        choices=SCALINGS,
    )
    exclude: tuple[str, ...] = option(
        ("layers.0.*", "layers.-1.*"),
        "fp8, fp8_block, mxfp8, nvfp4: patterns of weights whose matmuls stay in bfloat16, by "
        "names such as layers.3.ffn.w_up_DF; layers count from 0, or from the end as -1, -2, ….",
    )
    grad_reduce_dtype: str = option(
        "float32",
        "Format in which gradients of weight matmuls are added up over the mesh; bfloat16 halves "
        "that traffic, under recipes that compute in it. Microbatches are added up in float32.",
        choices=tuple(_GRAD_REDUCE_DTYPES),
    )
    grad_rounding: str = option(
        "nearest",
        "fp8, fp8_block, mxfp8, nvfp4: how gradients are rounded to the format; stochastic is "
        "right on average, whatever is lost in each.",
        choices=GRAD_ROUNDINGS,
    )
    emulate: bool = option(
        False,
        "The recipe is allowed on devices without such matmuls: the same results, more slowly.",
        resumable=True,
    )

    def __post_init__(self) -> None:
        get_recipe(self.recipe)
        if self.scaling not in SCALINGS:
            raise ValueError(f"scaling={self.scaling!r} must be one of {', '.join(SCALINGS)}.")
        if self.scaling != "current" and self.recipe != "fp8":
            raise ValueError(
                f"scaling={self.scaling!r} has no use under config.precision.recipe="
                f"{self.recipe!r}: it is for fp8; set config.precision.scaling=current."
            )
        if self.grad_reduce_dtype not in _GRAD_REDUCE_DTYPES:
            raise ValueError(
                f"grad_reduce_dtype={self.grad_reduce_dtype!r} must be one of "
                f"{', '.join(_GRAD_REDUCE_DTYPES)}."
            )
        if self.grad_rounding not in GRAD_ROUNDINGS:
            raise ValueError(
                f"grad_rounding={self.grad_rounding!r} must be one of {', '.join(GRAD_ROUNDINGS)}."
            )
        computes_in = jnp.dtype(get_recipe(self.recipe).compute_dtype).name
        if self.grad_reduce_dtype not in ("float32", computes_in):
            raise ValueError(
                f"grad_reduce_dtype={self.grad_reduce_dtype!r} does not fit "
                f"config.precision.recipe={self.recipe!r}, which computes in {computes_in}; set "
                "config.precision.grad_reduce_dtype=float32."
            )
        if self.grad_rounding != "nearest" and self.recipe not in QUANTIZED:
            raise ValueError(
                f"grad_rounding={self.grad_rounding!r} has no use under config.precision.recipe="
                f"{self.recipe!r}, which casts no gradients to fewer bits: it is for "
                f"{', '.join(QUANTIZED)}."
            )


def get_recipe(name: str) -> Recipe:
    """The recipe of that name, without quantised products: of models that are not trained.

    Raises:
      ValueError: for an unknown name, listing the known ones.
    """
    if name not in RECIPES:
        raise ValueError(f"recipe={name!r} must be one of {', '.join(RECIPES)}.")
    return RECIPES[name]


def training_recipe(config: PrecisionConfig, mesh: Mesh | None = None) -> Recipe:
    """The recipe of a model in training, on a mesh or one device."""
    reduce_dtype = _GRAD_REDUCE_DTYPES[config.grad_reduce_dtype]
    recipe = get_recipe(config.recipe)
    recipe = dataclasses.replace(
        recipe,
        grad_reduce_dtype=reduce_dtype,
        dot_general=functools.partial(recipe.dot_general, grad_reduce_dtype=reduce_dtype),
    )
    if config.recipe not in QUANTIZED:
        return recipe
    quantization = Quantization(
        config.scaling if config.recipe == "fp8" else config.recipe,
        config.exclude,
        config.emulate,
        rounds_gradients_stochastically=config.grad_rounding == "stochastic",
        mesh=mesh,
    )
    return dataclasses.replace(recipe, quantization=quantization)


def check_devices(config: PrecisionConfig, devices: Sequence[jax.Device]) -> None:
    """Checks that devices can multiply in the recipe's formats, or that they may be emulated.

    Raises:
      ValueError: where the matmuls would be in bfloat16 without a word.
    """
    if config.emulate or training_recipe(config).quantization is None:
        return
    least = ".".join(map(str, _NEEDED[config.recipe]))
    for device in devices:
        if _capability(device) < _NEEDED[config.recipe]:
            raise ValueError(
                f"recipe={config.recipe!r} needs GPUs of compute capability {least} or more, and "
                f"this mesh has {_describe_device(device)}; set config.precision.recipe=bfloat16. "
                "(config.precision.emulate=True tries its arithmetic out, slowly.)"
            )


def _describe_device(device: jax.Device) -> str:
    """Its kind and, of a GPU, its compute capability."""
    capability = getattr(device, "compute_capability", None)
    return device.device_kind + (f" ({capability})" if capability else "")


def _capability(device: jax.Device) -> tuple[int, int]:
    """Compute capability of an NVIDIA GPU; (0, 0) of anything else."""
    if device.platform != "gpu":
        return (0, 0)
    major, _, minor = str(getattr(device, "compute_capability", "0.0")).partition(".")
    return int(major), int(minor)
