"""Which group each parameter belongs to, read off its dimension letters alone.

Groups decide what weight decay applies to and what Muon orthogonalizes. Nothing is guessed from
shapes: a bias "LNH" (layers × heads × head size) has three dimensions and is still no matrix.

The rule. Leading letters out of P, L, E (pipeline stages, layers, experts) stack independent
parameters. The letters that remain form *sides*: a run of head letters with the head size (NH, KH,
KGH) is one side, any other letter is a side by itself. Two sides make a matrix, stored input side
first:

    "LDNH"  L | D × NH   matrix          "VD"   V × D   embedding: looked up along V
    "LNHD"  L | NH × D   matrix          "DV"   D × V   head: scores over V
    "TD"    T × D        embedding       "AD"   A × D   embedding: of positions, of token types
    "LEDF"  LE | D × F   matrix          "LD"   L | D   vector: a norm's scale, a bias
    "LDE"   L | D × E    matrix          "LKH"  L | KH  vector: a bias of all heads

A tied head has no array of its own: its "VD" is an embedding.
"""

import math
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax

#: Every group, with what it holds.
GROUPS: Mapping[str, str] = {
    "matrix": "weights between two sides other than the vocabulary",
    "embedding": "tables that are looked up: token embeddings (with tied weights the head too)",
    "head": "the untied output projection",
    "vector": "norm scales, biases and other one-sided parameters",
}

_STACKING = "PLE"
_LOOKED_UP = "VTA"  # along which a table is looked up: tokens, positions, token types
_SIDE = re.compile("[NKG]+H?|.")


class Layout(NamedTuple):
    """Letters of a parameter, split: those that stack it, then one string per side."""

    stacked: str
    sides: tuple[str, ...]


class Count(NamedTuple):
    """How much of a model is in one group."""

    num_arrays: int
    num_params: int


def layout(axes: str) -> Layout:
    """Splits dimension letters by the rule above: "LDNH" -> Layout("L", ("D", "NH"))."""
    rest = axes.lstrip(_STACKING)
    return Layout(axes[: len(axes) - len(rest)], tuple(_SIDE.findall(rest)))


def group_of(axes: str) -> str:
    """The group, one of `GROUPS`, of a parameter with these dimension letters.

    Raises:
      ValueError: for letters that are neither one side nor two.
    """
    sides = layout(axes).sides
    if len(sides) <= 1:
        return "vector"
    if len(sides) > 2:
        raise ValueError(
            f"axes={axes!r} has the sides {' × '.join(sides)}, but a parameter is a vector or a "
            f"matrix, stacked by leading letters out of {', '.join(_STACKING)}; split the array."
        )
    if sides[0] in _LOOKED_UP:
        return "embedding"
    return "head" if "V" in sides else "matrix"


def group_tree(axes: Any) -> Any:
    """The group of every parameter, as a tree like `axes`."""
    return jax.tree.map(group_of, axes)


def count_params(params: Any, axes: Any) -> dict[str, Count]:
    """Arrays and parameters per group; `params` may be abstract."""
    counts = dict.fromkeys(GROUPS, Count(0, 0))
    groups = jax.tree.leaves(group_tree(axes))
    for leaf, group in zip(jax.tree.leaves(params), groups, strict=True):
        arrays, total = counts[group]
        counts[group] = Count(arrays + 1, total + math.prod(leaf.shape))
    return counts


def describe(params: Any, axes: Any, decayed_groups: Collection[str]) -> str:
    """Two lines for the log: what weight decay applies to and what it spares, with counts."""
    counts = count_params(params, axes)
    lines = []
    for title, is_decayed in (("weight decay on", True), ("no weight decay on", False)):
        groups = [group for group in GROUPS if (group in decayed_groups) == is_decayed]
        total = sum(counts[group].num_params for group in groups)
        parts = (
            f"{group} {counts[group].num_params:,} in {counts[group].num_arrays} arrays"
            for group in groups
        )
        lines.append(f"{title} {total:,} parameters ({'; '.join(parts) or 'none'})")
    return "\n".join(lines)
