"""Between an NNX model and plain nested dicts: what the optimizer, checkpoints and meshes see.

    init:  split(Decoder(config, rngs=…, …)).params, under jit with out_shardings or jax.eval_shape
    step:  model = bind(params, nontrained, measured); loss(model, …); read_measured(model)
    then:  settle(model); read_nontrained(model)        once per update (see `jaxtrain.measured`)

`bind` closes over the model's structure only, not over arrays, so one made from an abstract model
serves concrete parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from flax import nnx

from jaxtrain.measured import Measured, Settled, Slot, asked

Tree = Mapping[str, Any]  # nested dicts of arrays (or of letters)


class Split(NamedTuple):
    """A model as plain trees."""

    #: (params, nontrained, measured or None: measure nothing) -> model; inverse of `split`
    bind: Callable[..., nnx.Module]
    params: Tree  #: the weights: what is loaded, exported and computed with
    nontrained: Tree  #: other state that outlives a step; often empty
    measured: Tree  #: a `Slot` for each thing that a step may measure
    axes: Tree  #: dimension letters of each leaf of `params` ("LDNH")
    settled: frozenset[str]  #: dotted paths of the weights that no gradient trains

    def trained(self, tree: Tree) -> dict[str, Any]:
        """What of a tree like `params` an optimizer may train."""
        return nest({path: x for path, x in flatten(tree).items() if path not in self.settled})

    def lasting(self) -> dict[str, Any]:
        """What a training state has to hold beside what an optimizer trains."""
        weights = {path: x for path, x in flatten(self.params).items() if path in self.settled}
        return nest(flatten(self.nontrained) | weights)


class Parametrization(NamedTuple):
    """What of a model is trained, and how that and a frozen rest make the model again.

    Frozen trees are arguments of a step, by name, and no part of its state.
    """

    #: (params, nontrained, frozen, measured or None: measure nothing) -> model
    bind: Callable[..., nnx.Module]
    init: Callable[[Tree, jax.Array], Tree]  #: (the model's params, key) -> what is trained
    nontrained: Callable[[Split], Tree]  #: the model -> what else the state holds
    axes: Tree  #: dimension letters of what is trained
    freeze: Callable[[Tree], Tree]  #: the model's params -> frozen trees by name
    frozen_axes: Tree  #: their letters


def whole(model: Split) -> Parametrization:
    """All parameters are trained that a gradient can train."""
    return Parametrization(
        bind=lambda params, nontrained, frozen, measured=None: model.bind(
            params, nontrained, measured
        ),
        init=lambda params, rng: model.trained(params),
        nontrained=Split.lasting,
        axes=model.trained(model.axes),
        freeze=lambda params: {},
        frozen_axes={},
    )


def split(model: nnx.Module) -> Split:
    """Takes a model (concrete, traced or abstract) apart."""
    graph, trained, measuring, rest = nnx.split(model, nnx.Param, Measured, ...)
    structure = {path: variable.replace(None) for path, variable in _flat(trained, rest)}
    unasked = {path: variable.replace(None) for path, variable in _flat(measuring)}

    def bind(params: Tree, nontrained: Tree, measured: Tree | None = None) -> nnx.Module:
        leaves = dict(_leaves(params)) | dict(_leaves(nontrained))
        if leaves.keys() != structure.keys():
            differing = sorted("/".join(path) for path in leaves.keys() ^ structure.keys())
            raise ValueError(f"parameters do not fit the model: {', '.join(differing)}")
        state = {path: variable.replace(leaves[path]) for path, variable in structure.items()}
        values = dict(_leaves(measured or {}))
        state |= {path: variable.replace(values.get(path)) for path, variable in unasked.items()}
        return nnx.merge(graph, nnx.from_flat_state(state.items()))

    return Split(
        bind,
        _nested({path: variable.get_value() for path, variable in _flat(trained)}),
        _nested({path: variable.get_value() for path, variable in _flat(rest)}),
        _nested({path: _slot(variable) for path, variable in _flat(measuring)}),
        _nested({path: variable.get_metadata("axes") for path, variable in _flat(trained)}),
        frozenset(
            ".".join(path) for path, variable in _flat(trained) if isinstance(variable, Settled)
        ),
    )


def read_nontrained(model: nnx.Module, like: Tree) -> dict[str, Any]:
    """The model's own of the leaves of `like`: what a state holds and no gradient trains."""
    parts = split(model)
    leaves = flatten(parts.params) | flatten(parts.nontrained)
    return nest({path: leaves[path] for path in flatten(like)})


def read_measured(model: nnx.Module) -> Tree:
    """What the passes of a step have measured so far."""
    return _nested({path: variable.get_value() for path, variable in _flat(asked(model))})


def _slot(variable: nnx.Variable) -> Slot:
    assert isinstance(variable, Measured), variable
    return Slot(type(variable), variable.get_metadata("extent"))


def flatten(tree: Tree) -> dict[str, Any]:
    """The leaves of nested dicts by dotted path."""
    return {".".join(path): leaf for path, leaf in _leaves(tree)}


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts from leaves by dotted path."""
    return _nested({tuple(path.split(".")): leaf for path, leaf in flat.items()})


def _flat(*states: nnx.State) -> list[tuple[tuple[str, ...], nnx.Variable]]:
    return [item for state in states for item in nnx.to_flat_state(state)]


def _leaves(tree: Tree, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    items: list[tuple[tuple[str, ...], Any]] = []
    for key, value in tree.items():
        items += (
            _leaves(value, (*path, key)) if isinstance(value, Mapping) else [((*path, key), value)]
        )
    return items


def _nested(flat: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for (*parents, name), value in flat.items():
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree
