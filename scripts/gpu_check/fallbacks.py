"""The proof that nothing fell back: the compiled program's own text, for the device that runs it.

XLA multiplies in bfloat16 where it does not recognise an FP8 matmul, expands what it has no kernel
for, and says nothing. So FLOPs are counted by the formats of operands, and kernels by their names.
"""

import collections
import re
from collections.abc import Iterable

from gpu_check.checks import Checks
from jaxtrain.models.flops import matmul_params
from jaxtrain.planning.hlo import Contents, Kernel, read
from jaxtrain.run_config import RunConfig

E4M3, E5M2 = "f8e4m3fn", "f8e5m2"
_PALLAS = ("forward_kernel", "of_queries_kernel", "of_keys_kernel")
_CUDNN = "__cudnn$fmha"
_GROUPED = ("grouped_product_kernel", "grouped_of_matrices_kernel")
#: XLA's matmuls may take this much more than the model's arithmetic, for what is computed twice.
_MOST_WORK = 1.4
_LEAST_FP8 = 0.99
_MOST_FLOAT32 = 0.02  # of the FLOPs: the router's


def prove(config: RunConfig, attention: str, text: str, checks: Checks) -> dict[str, float]:
    """Checks a train step's compiled text; returns TFLOP of its matmuls by formats of operands.

    Args:
      attention: the implementation that the start-up report names.
    """
    contents = read(text)
    _attention(config, attention, contents, text, checks)
    if config.model.num_experts is not None:
        _experts(config, contents, checks)
    if config.precision.recipe == "fp8":
        _fp8(config, contents, checks)
    flops = flops_by_formats(contents)
    _no_more_work(config, contents, checks)
    share = flops["f32 × f32"] / max(sum(flops.values()), 1.0)
    checks.expect(
        "matmuls are not in float32",
        share <= _MOST_FLOAT32,
        f"{share:.2%} of the FLOPs, at most {_MOST_FLOAT32:.0%}",
    )
    return {formats: total / 1e12 for formats, total in flops.items()}


def flops_by_formats(contents: Contents) -> dict[str, float]:
    """FLOPs of XLA's and the libraries' matmuls, by the formats of their two operands."""
    flops: dict[str, float] = collections.defaultdict(float)
    for each in contents.matmuls:
        formats = sorted((each.lhs.dtype, each.rhs.dtype))
        flops[" × ".join(formats)] += each.flops * each.times
    return flops


def _attention(
    config: RunConfig, attention: str, contents: Contents, text: str, checks: Checks
) -> None:
    layers, length = config.model.num_layers, config.data.seq_len
    cudnn = [each for each in contents.kernels if each.target.startswith(_CUDNN)]
    backward = [each for each in cudnn if "Backward" in each.target]
    counts = {
        "cudnn": [_runs(cudnn) - _runs(backward), _runs(backward)],
        "pallas": [_runs(_named(contents, name)) for name in _PALLAS],
    }
    if attention in counts:
        found = counts[attention]
        checks.expect(
            f"attention is {attention}'s kernel in each of {layers} layers, forward and backward",
            all(number >= layers for number in found),
            f"kernels run {', '.join(map(str, found))} times",
        )
    else:
        others = sum(map(sum, counts.values()))
        checks.expect(f"attention is {attention}, without a kernel", others == 0, f"{others} runs")
    squares = set(re.findall(rf"\b[a-z]+[0-9a-z]*\[(?:[0-9]+,)+{length},{length}\]", text))
    checks.expect(
        f"no array has {length} × {length} scores",
        not squares,
        ", ".join(sorted(squares)) or "none",
    )


def _experts(config: RunConfig, contents: Contents, checks: Checks) -> None:
    """Three products a layer, each with two gradients, by the grouped kernel."""
    model = config.model
    layers = model.num_expert_layers
    products, of_matrices = (_runs(_named(contents, name)) for name in _GROUPED)
    checks.expect(
        f"dropless experts are the grouped matmul kernel in each of {layers} layers",
        products >= 6 * layers and of_matrices >= 3 * layers,
        f"products run {products} times (at least {6 * layers}), gradients of matrices "
        f"{of_matrices} (at least {3 * layers})",
    )
    tokens = config.data.batch_size * config.data.seq_len
    one = 2 * tokens * model.num_experts_per_token * model.d_model * model.expert_dim
    largest = max((each.flops for each in contents.matmuls), default=0.0)
    checks.expect(
        "no matmul is as large as one of all experts' on all tokens",
        largest < one,
        f"the largest is {largest / 1e9:.1f} GFLOP, a layer's chosen experts take {one / 1e9:.1f}",
    )


def _fp8(config: RunConfig, contents: Contents, checks: Checks) -> None:
    """Output and both gradients of every matrix of the layers that are not excluded."""
    model = config.model
    layers = model.num_layers - len(config.precision.exclude)  # patterns of one layer each
    weights = matmul_params(model)
    in_matmuls = weights["attention"]
    if model.num_experts is None:
        in_matmuls += weights["ffn"]
    else:
        _fp8_experts(layers, len(config.precision.exclude), contents, checks)
    tokens = config.data.batch_size * config.data.seq_len
    one = 2.0 * tokens * in_matmuls * layers / model.num_layers
    flops = flops_by_formats(contents)
    for what, formats, wanted in (
        ("outputs", f"{E4M3} × {E4M3}", one),
        ("gradients", f"{E4M3} × {E5M2}", 2 * one),
    ):
        checks.expect(
            f"{what} of {layers} layers' matrices are FP8 matmuls ({formats})",
            flops[formats] >= _LEAST_FP8 * wanted,
            f"{flops[formats] / 1e12:.4g} TFLOP in FP8 of {wanted / 1e12:.4g}",
        )


def _fp8_experts(layers: int, num_excluded: int, contents: Contents, checks: Checks) -> None:
    """Operands of the grouped kernel: both in FP8, but for the share of the excluded layers.

    Without the share, what is computed twice in FP8 would stand for a gradient that is not.
    """
    for name, wanted in zip(_GROUPED, (6 * layers, 3 * layers), strict=True):
        kernels = _named(contents, name)
        found = _runs(each for each in kernels if _is_fp8(each))
        others = _runs(kernels) - found
        checks.expect(
            f"routed experts' {name} kernels of {layers} layers take FP8",
            found >= wanted and others * layers <= found * num_excluded,
            f"{found} runs of at least {wanted}; {others} others, for {num_excluded} layers",
        )


def _is_fp8(kernel: Kernel) -> bool:
    return sum(each.dtype in (E4M3, E5M2) for each in kernel.operands) >= 2


def _no_more_work(config: RunConfig, contents: Contents, checks: Checks) -> None:
    weights = dict(matmul_params(config.model))
    if config.model.num_experts is not None:
        weights["ffn"] = 0  # the kernel's
    tokens = config.data.batch_size * config.data.seq_len
    needed = 6.0 * tokens * sum(weights.values())
    checks.expect(
        "XLA's matmuls are the model's arithmetic and not several times that",
        contents.flops <= _MOST_WORK * needed,
        f"{contents.flops / 1e12:.4g} TFLOP, the model needs {needed / 1e12:.4g}",
    )


def _named(contents: Contents, name: str) -> list[Kernel]:
    """Kernels of ours, which carry their name; what is only interpreted is no kernel."""
    # Inside of a loop as a/NAME/b, else as jvp(NAME).
    return [each for each in contents.kernels if re.search(rf"[/(]{name}[/)]", each.op_name)]


def _runs(kernels: Iterable[Kernel]) -> int:
    return sum(each.times for each in kernels)
