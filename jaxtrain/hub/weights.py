"""How an array of ours lies in a tensor of theirs: one declarative entry, used in both directions.

    Weight("model.layers.{L}.self_attn.q_proj.weight", "(N H) D", "blocks.attention.w_q_DNH")

The letters are those of our array (types.LEGEND). `{L}` in the name: one tensor for each index of
that letter; `{L+3}`: counted from 3, where the first layers are in another array. "(N H) D" is the
shape of a tensor: a matrix whose rows run over heads and within them over the head. What is stored
is never changed, only moved, so that import and export are inverse to each other bit for bit.

A tensor that holds several of our arrays names them with what stands for the `*` of its layout,
along which they follow each other:

    Weight("….qkv_proj.weight", "* D", Part("….w_q_DNH", "N H"), Part("….w_k_DKH", "K H"), …)

`Part(…, "1")` stands for one element: "(F *)" with two of them are two arrays interleaved.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_STAR = "*"
_INDEX = re.compile(r"\{([A-Z])(?:\+(\d+))?\}")
_BLOCK = 64  # elements a side of what is transposed at a time: fits the first-level cache


@dataclasses.dataclass(frozen=True)
class Part:
    """An array of ours within a tensor: its dotted path, and its letters in place of the `*`."""

    path: str
    star: str = ""

    @property
    def letters(self) -> list[str]:
        """Of the star."""
        return [] if self.star == "1" else self.star.split()


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Letters and shape of a parameter of ours."""

    letters: str
    shape: tuple[int, ...]


class Weight:
    """One entry of a family's table: one tensor of theirs for each index in `name`.

    Args:
      in_float32: files have it in float32 whatever their other tensors are.
    """

    def __init__(
        self, name: str, layout: str, *parts: str | Part, in_float32: bool = False
    ) -> None:
        self.name, self.layout, self.in_float32 = name, layout, in_float32
        self.parts = tuple(Part(part) if isinstance(part, str) else part for part in parts)
        self.indexed = "".join(letter for letter, _ in _INDEX.findall(name))
        self._groups = [group.strip("()").split() for group in re.findall(r"\(.*?\)|\S", layout)]
        assert all(bool(part.star) == (_STAR in layout) for part in self.parts), name

    def tensors(self, leaves: Mapping[str, Leaf]) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor of theirs by (name, index of the letters in the name)."""
        leaf = leaves[self.parts[0].path]
        sizes = dict(zip(leaf.letters, leaf.shape, strict=True))
        for index in itertools.product(*(range(sizes[letter]) for letter in self.indexed)):
            yield self.tensor_name(index), index

    def tensor_name(self, index: tuple[int, ...]) -> str:
        """The tensor of theirs at an index of the letters in the name."""
        place = dict(zip(self.indexed, index, strict=True))
        return _INDEX.sub(lambda found: str(place[found[1]] + int(found[2] or 0)), self.name)

    def shape(self, leaves: Mapping[str, Leaf]) -> tuple[int, ...]:
        """The shape of one tensor of theirs."""
        dims = self._dims(leaves)
        return tuple(math.prod(dims[letter] for letter in group) for group in self._groups)

    def part_of(self, tensor: np.ndarray, number: int, leaves: Mapping[str, Leaf]) -> np.ndarray:
        """One of our arrays as a view into a tensor, without the letters of the name."""
        part, dims = self.parts[number], self._dims(leaves)
        flat = [letter for group in self._groups for letter in group]
        x = tensor.reshape([dims[letter] for letter in flat])
        if part.star:
            axis = flat.index(_STAR)
            starts = np.cumsum([0, *(self._star_size(each, leaves) for each in self.parts)])
            x = x[(slice(None),) * axis + (slice(starts[number], starts[number + 1]),)]
            letters, sizes = part.letters, _sizes(leaves[part.path])
            inner = [sizes[letter] for letter in letters]
            x = x.reshape(*x.shape[:axis], *inner, *x.shape[axis + 1 :])
            flat[axis : axis + 1] = letters
        return x.transpose([flat.index(letter) for letter in self._ours(part, leaves)])

    def tensor_of(
        self, arrays: Sequence[np.ndarray], leaves: Mapping[str, Leaf], dtype: Any
    ) -> np.ndarray:
        """The tensor of theirs that our arrays (at one index of the name) make up."""
        tensor = np.empty(self.shape(leaves), dtype)
        for number, array in enumerate(arrays):
            copy(self.part_of(tensor, number, leaves), array)
        return tensor

    def _ours(self, part: Part, leaves: Mapping[str, Leaf]) -> str:
        return "".join(each for each in leaves[part.path].letters if each not in self.indexed)

    def _dims(self, leaves: Mapping[str, Leaf]) -> dict[str, int]:
        """Sizes of the letters of the layout, those within stars left out."""
        dims: dict[str, int] = {}
        for part in self.parts:
            inside = part.letters
            sizes = _sizes(leaves[part.path])
            dims |= {letter: size for letter, size in sizes.items() if letter not in inside}
        return dims | {_STAR: sum(self._star_size(part, leaves) for part in self.parts)}

    def _star_size(self, part: Part, leaves: Mapping[str, Leaf]) -> int:
        sizes = _sizes(leaves[part.path])
        return math.prod(sizes[letter] for letter in part.letters)


def copy(target: np.ndarray, source: np.ndarray) -> None:
    """`target[...] = source` with a change of dtype, fast also where one is a transposed view.

    NumPy's own copy of a transposed matrix misses the cache at every element, and its casts are
    fast along contiguous memory only. So strips of `source` are cast as they lie, and blocks of
    them turned: up to 6 times faster.
    """
    along, across = _fastest_axis(source), _fastest_axis(target)
    if along == across or min(target.shape[along], target.shape[across]) < _BLOCK:
        target[...] = source
        return
    strip: list[slice] = [slice(None)] * target.ndim
    block = list(strip)
    for start in range(0, target.shape[across], _BLOCK):
        strip[across] = slice(start, start + _BLOCK)
        cast = source[tuple(strip)].astype(target.dtype, order="K")
        turned = target[tuple(strip)]
        for first in range(0, target.shape[along], _BLOCK):
            block[along] = slice(first, first + _BLOCK)
            turned[tuple(block)] = cast[tuple(block)]


def _fastest_axis(x: np.ndarray) -> int:
    """The axis along which memory is contiguous, or the nearest to it."""
    pairs = zip(x.strides, x.shape, strict=True)
    strides = [abs(stride) if size > 1 else math.inf for stride, size in pairs]
    return int(np.argmin(strides)) if strides else 0


def _sizes(leaf: Leaf) -> dict[str, int]:
    return dict(zip(leaf.letters, leaf.shape, strict=True))
