"""Reads a compiled GPU program (`compiled.as_text()`): its matmuls, kernels and collectives.

Each comes with the number of times that it runs: loops whose trip count XLA knows multiply what is
in them. Shapes and bytes are those of one device.
"""

import collections
import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

#: Bytes of one element; sub-byte formats are packed.
ELEMENT_BYTES = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "s64": 8, "u64": 8,
    "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16,
    "f8e4m3fn": 1, "f8e5m2": 1, "f8e8m0fnu": 1, "f4e2m1fn": 0.5, "s4": 0.5, "u4": 0.5,
}  # fmt: skip
COLLECTIVES = (
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
)  # fmt: skip

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.+)$")
_OPCODE = re.compile(r" ([a-z][a-z0-9\-]*)\(")
_SHAPE = re.compile(r"([a-z][a-z0-9]*)\[([0-9,]*)\]")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')


class Shape(NamedTuple):
    """An array: element type as HLO writes it ("bf16", "f8e4m3fn") and sizes."""

    dtype: str
    sizes: tuple[int, ...]

    @property
    def num_bytes(self) -> float:
        """Size in memory."""
        return math.prod(self.sizes) * ELEMENT_BYTES[self.dtype]


@dataclasses.dataclass(frozen=True)
class Matmul:
    """One matrix product."""

    kernel: str  #: the custom call's target ("__cublas$lt$matmul$f8"), or "dot" in a fusion
    lhs: Shape
    rhs: Shape
    out: Shape
    flops: float  #: of one run: 2 × elements of the result × terms of each
    times: int
    op_name: str  #: where JAX made it


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A call of something that XLA did not generate: cuBLAS, cuDNN, Triton."""

    target: str
    operands: tuple[Shape, ...]
    times: int
    op_name: str


@dataclasses.dataclass(frozen=True)
class Collective:
    """One exchange between devices."""

    kind: str  #: one of COLLECTIVES
    dtype: str
    num_bytes: float  #: of one run: of what goes in or comes out, whichever is more
    times: int
    op_name: str


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a program holds."""

    matmuls: tuple[Matmul, ...]
    kernels: tuple[Kernel, ...]
    collectives: tuple[Collective, ...]

    @property
    def flops(self) -> float:
        """Of all matmuls on one device, all runs."""
        return sum(each.flops * each.times for each in self.matmuls)

    def collective_bytes(self) -> Mapping[str, float]:
        """Bytes per kind of collective, all runs."""
        total: dict[str, float] = collections.defaultdict(float)
        for each in self.collectives:
            total[each.kind] += each.num_bytes * each.times
        return dict(total)


class _Instruction(NamedTuple):
    name: str
    shapes: tuple[Shape, ...]  # of the result; several of a tuple
    opcode: str
    operands: tuple[str, ...]
    text: str


def read(text: str) -> Contents:
    """The contents of an HLO module's text."""
    computations = _computations(text)
    times = _times(computations, _entry(text))
    matmuls, kernels, collectives = [], [], []
    for name, instructions in computations.items():
        if times[name] == 0:
            continue
        by_name = {each.name: each for each in instructions}
        for each in instructions:
            runs, op_name = times[name], _first(_OP_NAME, each.text)
            if each.opcode == "custom-call":
                operands = tuple(shape for x in each.operands for shape in by_name[x].shapes)
                kernels.append(Kernel(_first(_TARGET, each.text), operands, runs, op_name))
            matmul = _matmul(each, by_name, runs, op_name)
            if matmul:
                matmuls.append(matmul)
            kind = each.opcode.removesuffix("-start")
            if kind in COLLECTIVES:
                moved, dtype = _moved(each), each.shapes[0].dtype
                collectives.append(Collective(kind, dtype, moved, runs, op_name))
    return Contents(tuple(matmuls), tuple(kernels), tuple(collectives))


def _entry(text: str) -> str:
    found = re.search(r"^ENTRY %?([\w.\-]+)", text, re.MULTILINE)
    if not found:
        raise ValueError("the text has no ENTRY computation: it is no HLO module")
    return found.group(1)


def _computations(text: str) -> dict[str, list[_Instruction]]:
    computations: dict[str, list[_Instruction]] = {}
    inside: list[_Instruction] = []
    for line in text.splitlines():
        line = re.sub(r"/\*.*?\*/", "", line)  # /*index=5*/ in long tuples
        head = _COMPUTATION.match(line)
        if head:
            inside = computations.setdefault(head.group(1), [])
        elif instruction := _INSTRUCTION.match(line):
            inside.append(_instruction(*instruction.groups()))
    return computations


def _instruction(name: str, rest: str) -> _Instruction:
    opcode = _OPCODE.search(f" {rest}")
    if not opcode:  # a constant's text, say
        return _Instruction(name, (), "", (), rest)
    start = opcode.start()
    result, arguments = rest[: max(start - 1, 0)], rest[opcode.end() - 1 :]
    end = arguments.find(")")
    operands = tuple(re.findall(r"%([\w.\-]+)", arguments[:end]))
    return _Instruction(name, _shapes(result), opcode.group(1), operands, rest)


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(
        Shape(dtype, tuple(int(size) for size in sizes.split(",") if size))
        for dtype, sizes in _SHAPE.findall(text)
        if dtype in ELEMENT_BYTES
    )


def _times(computations: Mapping[str, list[_Instruction]], entry: str) -> Mapping[str, int]:
    """How often each computation runs, a branch as if it were always taken."""
    times: collections.Counter[str] = collections.Counter()

    def visit(name: str, runs: int) -> None:
        times[name] += runs
        for each in computations.get(name, ()):
            for called, factor in _called(each):
                visit(called, runs * factor)

    visit(entry, 1)
    return times


def _called(instruction: _Instruction) -> Iterator[tuple[str, int]]:
    factor = int(_first(_TRIP_COUNT, instruction.text) or 1)
    for name in _CALLED.findall(instruction.text):
        yield name, factor
    for names in _BRANCHES.findall(instruction.text):
        for name in re.findall(r"[\w.\-]+", names):
            yield name, factor


def _moved(instruction: _Instruction) -> float:
    """Bytes of what a collective takes or gives, whichever is more; several may be joined in one.

    The result of most started ones is (operands, results), with counters behind.
    """
    sizes = [shape.num_bytes for shape in instruction.shapes if shape.sizes]
    if instruction.opcode.endswith("-start") and instruction.opcode != "all-reduce-start":
        half = len(sizes) // 2
        return max(sum(sizes[:half]), sum(sizes[half:]))
    return sum(sizes)


def _matmul(
    instruction: _Instruction, by_name: Mapping[str, _Instruction], times: int, op_name: str
) -> Matmul | None:
    if instruction.opcode == "dot":
        kernel = "dot"
        contracted = _first(re.compile(r"lhs_contracting_dims=\{([\d,]*)\}"), instruction.text)
        axes = [int(axis) for axis in contracted.split(",") if axis]
    elif "__cublas$" in instruction.text and instruction.opcode == "custom-call":
        kernel = _first(_TARGET, instruction.text)
        numbers = _dimension_numbers(instruction.text)
        axes = [int(axis) for axis in numbers["lhs_contracting_dimensions"]]
    else:
        return None
    lhs, rhs = (by_name[name].shapes[0] for name in instruction.operands[:2])
    out = instruction.shapes[0]
    terms = math.prod(lhs.sizes[axis] for axis in axes)
    return Matmul(kernel, lhs, rhs, out, 2 * math.prod(out.sizes) * terms, times, op_name)


def _dimension_numbers(text: str) -> Mapping[str, list[str]]:
    found = re.search(r'"dot_dimension_numbers":(\{[^}]*\})', text)
    assert found, text
    return json.loads(found.group(1))


def _first(pattern: re.Pattern, text: str) -> str:
    found = pattern.search(text)
    return found.group(1) if found else ""
