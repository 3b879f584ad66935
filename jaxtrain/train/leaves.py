"""The leaves of a state by path: how a checkpoint names, stores and describes each.

A path joins the keys from the outermost in by dots: `opt_state.1.0.mu.blocks.w_up`. Containers
(NamedTuples, tuples, dicts) are told apart by nothing else, and empty ones leave no trace, so a
checkpoint does not depend on the Python classes that it was made from.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from jaxtrain.train.checkpoint_read import Leaf

Keys = tuple[str, ...]


def named_leaves(tree: Any) -> dict[Keys, Any]:
    """The leaves of a pytree in its order, by their keys.

    Raises:
      ValueError: where a leaf is no array or an empty one, or two have the same path.
    """
    leaves: dict[Keys, Any] = {}
    paths = set()
    for key_path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        keys = tuple(jax.tree_util.keystr((key,), simple=True) for key in key_path)
        path = dotted(keys)
        if path in paths:
            raise ValueError(f"two leaves of the state have the path {path}; rename one.")
        if not hasattr(leaf, "dtype"):
            raise ValueError(f"{path} is a {type(leaf).__name__}; a state has arrays only.")
        if 0 in leaf.shape:
            raise ValueError(f"{path} of shape {leaf.shape} is empty, which Orbax cannot store.")
        paths.add(path)
        leaves[keys] = leaf
    return leaves


def dotted(keys: Iterable[str]) -> str:
    """The path of a leaf."""
    return ".".join(keys)


def nest(leaves: Mapping[Keys, Any]) -> dict[str, Any]:
    """Nested dicts with these leaves."""
    tree: dict[str, Any] = {}
    for keys, leaf in leaves.items():
        node = tree
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = leaf
    return tree


def pick(tree: Mapping[str, Any], keys: Keys) -> Any:
    """The leaf of nested dicts at these keys."""
    node: Any = tree
    for key in keys:
        node = node[key]
    return node


def describe(leaf: Any) -> Leaf:
    """What a checkpoint says about an array; of abstract keys the implementation is not known."""
    is_key = isinstance(leaf, jax.Array) and _is_typed_key(leaf)
    impl = str(jax.random.key_impl(leaf)) if is_key else None
    sharding = _sharding_text(getattr(leaf, "sharding", None))
    num_bytes = math.prod(leaf.shape) * leaf.dtype.itemsize
    return Leaf(tuple(leaf.shape), str(leaf.dtype), num_bytes, sharding, impl)


def storable(leaf: Any) -> Any:
    """The array that is stored for a leaf: of typed PRNG keys their data."""
    if _is_typed_key(leaf):
        return jax.random.key_data(leaf)
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)


def abstract_storable(path: str, leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape, dtype and sharding of what is stored for a leaf.

    Raises:
      ValueError: where the leaf has no sharding: the default would put all on one device.
    """
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        raise ValueError(f"{path} has no sharding to be restored with; give it one.")
    stored = jax.eval_shape(jax.random.key_data, leaf) if _is_typed_key(leaf) else leaf
    return jax.ShapeDtypeStruct(stored.shape, stored.dtype, sharding=sharding)


def _is_typed_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _sharding_text(sharding: Any) -> str:
    if sharding is None:
        return "host"
    if sharding.num_devices == 1:
        return "one device"
    if sharding.is_fully_replicated:
        return f"replicated on {sharding.num_devices} devices"
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return str(sharding)
    mesh = " ".join(f"{axis}={size}" for axis, size in sharding.mesh.shape.items() if size > 1)
    parts = ["+".join(p) if isinstance(p, tuple) else p or "-" for p in sharding.spec]
    return f"({', '.join(parts)}) on {mesh}"
