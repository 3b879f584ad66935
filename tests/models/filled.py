"""Modules with random parameters, and quick compilation: making them is not what tests are about.

Drawing initial weights and compiling with optimisations cost more than all else in small tests;
neither changes what is computed.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

#: `jax.jit` without the optimisations.
quick = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)


def filled(make, std=0.3):
    """The module that `make` makes; every parameter is random, norm scales around 1."""
    abstract = nnx.eval_shape(make)
    graph, state = nnx.split(abstract)
    rng, leaves = np.random.default_rng(1), []
    for path, variable in nnx.to_flat_state(state):
        if not isinstance(variable, nnx.Param):
            leaves.append((path, variable))
            continue
        mean = 1.0 if path[-1] == "scale" else 0.0
        value = rng.normal(mean, std, variable.shape)
        leaves.append((path, variable.replace(jnp.asarray(value, jnp.float32))))
    return nnx.merge(graph, nnx.from_flat_state(leaves))


def parameters(module):
    """Its parameters in float64 by dotted path."""
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {".".join(map(str, path)): np.asarray(v[...], np.float64) for path, v in flat}
