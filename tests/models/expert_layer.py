"""A layer of experts with random parameters, alone or on a mesh."""

import functools

from filled import filled
from flax import nnx

from jaxtrain.models import moe
from jaxtrain.models.parameters import split
from jaxtrain.parallel.sharding import Constrain
from jaxtrain.precision.recipe import get_recipe


@functools.cache
def parts(config, mesh=None):
    """(its structure, its parameters)."""
    constrain = Constrain(mesh) if mesh else (lambda x, letters: x)

    def make():
        return moe.ExpertFeedForward(
            config, rngs=nnx.Rngs(0), recipe=get_recipe("float32"), constrain=constrain
        )

    return split(nnx.eval_shape(make)), split(filled(make)).params
