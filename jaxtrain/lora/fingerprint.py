"""A fingerprint of an array on devices, by its content alone.

The same values give the same fingerprint on every mesh and any number of processes, and whatever
file they came from: sums of integers are exact in every order. It tells a base model from another
one, or from its own later state; it is no defence against somebody who makes two alike on purpose.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding


def fingerprint(x: jax.Array) -> str:
    """16 hex digits of an array of floats of 2 or 4 bytes; reads memory once."""
    return "".join(f"{int(each):08x}" for each in np.asarray(_sums_on(_everywhere(x.sharding))(x)))


def _everywhere(sharding: Sharding) -> Sharding | None:
    """The whole on each device, so that every process can read it."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return None


@functools.cache
def _sums_on(sharding: Sharding | None) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(_sums, out_shardings=sharding)


def _sums(x: jax.Array) -> jax.Array:
    """Two sums modulo 2³² over all elements of their bits, mixed with where they stand."""
    unsigned = {2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
    place = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        step = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
        place = place * np.uint32(size % 2**32) + step
    seeds = (np.uint32(0x9E3779B9), np.uint32(0x7F4A7C15))
    mixed = [_mix(bits ^ _mix(place ^ seed)) for seed in seeds]
    return jnp.stack([jnp.sum(each, dtype=jnp.uint32) for each in mixed])


def _mix(x: jax.Array) -> jax.Array:
    """Every bit of the input changes half the bits of the output (MurmurHash3's finaliser)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
