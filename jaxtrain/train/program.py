"""`Program`: a model, a loss and an optimizer on a mesh, ready to initialise, lower and run.

Launchers build one from their config; the loop, the benchmark and planning use it. Nothing is
allocated before `init`, so a program of any size can be described and lowered on a laptop.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtrain.models.parameters import Parametrization, Split, flatten, nest, split, whole
from jaxtrain.optim.build import Optimizer
from jaxtrain.optim.state_axes import state_axes
from jaxtrain.parallel import sharding as sharding_lib
from jaxtrain.parallel.mesh import batch_shards
from jaxtrain.precision import loss_scaling
from jaxtrain.train.frozen import FrozenModel
from jaxtrain.train.objective import Objective
from jaxtrain.train.state import TrainState, initial_state
from jaxtrain.train.step import make_eval_step, make_train_step
from jaxtrain.types import Loss


@dataclasses.dataclass(frozen=True)
class Program:
    """`make_model(rng)` builds the model; it is traced abstractly too."""

    make_model: Callable[[jax.Array], Any]
    loss: Loss
    make_optimizer: Callable[[Any], Optimizer]  # axes of the parameters -> optimizer
    mesh: Mesh
    sharding: str = "zero3"  # a key of parallel.sharding_lib.TABLES
    num_microbatches: int = 1
    scales_loss: bool = False  # dynamic loss scaling
    seed: int = 0
    parametrize: Callable[[Split], Parametrization] = whole  # what of the model is trained
    #: Models beside it that a loss sees (reference policy, teacher), by name.
    others: Mapping[str, FrozenModel] = dataclasses.field(default_factory=dict, hash=False)

    @functools.cached_property
    def model(self) -> Split:
        """The model, abstract: what a checkpoint or a file of weights has to hold."""
        return split(jax.eval_shape(self.make_model, jax.random.key(0)))

    @functools.cached_property
    def _trained(self) -> Parametrization:
        return self.parametrize(self.model)

    @property
    def axes(self) -> Any:
        """Dimension letters of every trained parameter, as a nested dict."""
        return self._trained.axes

    @property
    def table(self) -> sharding_lib.Table:
        """Where letters lie on the mesh."""
        return sharding_lib.TABLES[self.sharding]

    @functools.cached_property
    def optimizer(self) -> Optimizer:
        """The optimizer chain and its schedule."""
        return self.make_optimizer(self.axes)

    def check(self) -> None:
        """Raises a ValueError where the mesh does not divide a parameter or no optimizer fits."""
        assert jax.tree.leaves(self.axes), "no parameter is trained"
        assert self.optimizer  # built here, before anything is touched
        for table in (self.table.params, self.table.opt_state):
            sharding_lib.check_divides(self.model.axes, self.model.params, table, self.mesh)
        for other in self.others.values():
            table = sharding_lib.TABLES[other.sharding].params
            sharding_lib.check_divides(other.model.axes, other.model.params, table, self.mesh)

    def _initial_state(self) -> TrainState:
        rng = jax.random.key(self.seed)
        model = split(self.make_model(rng))
        params = self._trained.init(model.params, rng)
        opt_state = self.optimizer.transform.init(params)
        scale = loss_scaling.initial() if self.scales_loss else None
        return initial_state(params, self._trained.nontrained(model), opt_state, self.seed, scale)

    def _initial_frozen(self) -> Mapping[str, Any]:
        rng = jax.random.key(self.seed)
        trees = {each.tree: each.init(rng) for each in self.others.values()}
        return trees | dict(self._trained.freeze(split(self.make_model(rng)).params))

    @functools.cached_property
    def state_shardings(self) -> TrainState:
        """The sharding of every leaf of the state."""
        whole = NamedSharding(self.mesh, PartitionSpec())
        shapes = jax.eval_shape(self._initial_state)
        shardings = jax.tree.map(lambda _: whole, shapes)
        letters = state_axes(self.optimizer.transform, shapes.params, self.axes)
        named = functools.partial(sharding_lib.named_shardings, mesh=self.mesh)
        return shardings._replace(
            params=named(self.axes, self.table.params),
            opt_state=named(letters, self.table.opt_state),
        )

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the state; nothing is allocated."""
        shapes = jax.eval_shape(self._initial_state)
        return jax.tree.map(
            lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
            shapes,
            self.state_shardings,
        )

    @property
    def abstract_weights(self) -> Any:
        """Shapes and shardings of all of the model's weights that the state holds."""
        state = self.abstract_state
        settled = {
            path: leaf
            for path, leaf in flatten(state.nontrained).items()
            if path in self.model.settled
        }
        return nest(flatten(state.params) | settled)

    def init(self) -> TrainState:
        """The state before the first step: the same values on every mesh."""
        return jax.jit(self._initial_state, out_shardings=self.state_shardings)()

    def bind(self, params: Any, nontrained: Any, frozen: Mapping[str, Any], measured: Any = None):
        """The trained model, and the others by name, from what a step is given."""
        model = self._trained.bind(params, nontrained, frozen, measured)
        return model, {name: each.bind(frozen[each.tree]) for name, each in self.others.items()}

    @functools.cached_property
    def abstract_frozen(self) -> Mapping[str, Any]:
        """The frozen trees by name: like `abstract_state`, with their shardings."""
        return jax.tree.map(
            lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
            jax.eval_shape(self._initial_frozen),
            self._frozen_shardings,
        )

    @property
    def frozen_axes(self) -> Mapping[str, Any]:
        """Dimension letters of the frozen trees."""
        return {each.tree: each.model.axes for each in self.others.values()} | dict(
            self._trained.frozen_axes
        )

    @property
    def _frozen_shardings(self) -> Any:
        tables = {each.tree: sharding_lib.TABLES[each.sharding] for each in self.others.values()}
        tables |= {tree: self.table for tree in self._trained.frozen_axes}
        return {
            tree: sharding_lib.named_shardings(axes, tables[tree].params, self.mesh)
            for tree, axes in self.frozen_axes.items()
        }

    def init_frozen(self) -> Mapping[str, Any]:
        """The frozen trees of models that were never trained: for measuring."""
        return jax.jit(self._initial_frozen, out_shardings=self._frozen_shardings)()

    @functools.cached_property
    def train_step(self):
        """The jitted update; donates the state."""
        grads = sharding_lib.named_shardings(self.axes, self.table.grads, self.mesh)
        step = make_train_step(
            Objective(self.loss, self.bind, self.model.measured, grads),
            self.optimizer.transform,
            self.optimizer.schedule,
            self.mesh,
            self.num_microbatches,
        )
        return jax.jit(step, donate_argnums=0, out_shardings=(self.state_shardings, None))

    @functools.cached_property
    def eval_step(self):
        """The jitted loss sums of one batch."""
        return jax.jit(make_eval_step(self.loss, self.bind))

    def lower(self, batch: Any, platform: str | None = None):
        """Lowers the train step for a batch of shapes; nothing is allocated.

        Args:
          platform: "cuda" to compile ahead of time for GPUs from another machine.
        """
        where = sharding_lib.batch_sharding(self.mesh)
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), batch
        )
        traced = self.train_step.trace(self.abstract_state, self.abstract_frozen, abstract)
        return traced.lower(lowering_platforms=(platform,) if platform else None)

    def put(self, batch: Any, num_rows: int) -> Any:
        """A host's rows of a batch (NumPy) as global arrays of `num_rows` rows on the mesh."""
        where = sharding_lib.batch_sharding(self.mesh)
        return jax.tree.map(
            lambda x: jax.make_array_from_process_local_data(where, x, (num_rows, *x.shape[1:])),
            batch,
        )

    def local_rows(self, num_rows: int) -> slice:
        """Which rows of a batch of `num_rows` this host's devices hold.

        Raises:
          ValueError: where the batch does not divide, or the rows are not one contiguous run.
        """
        shards = sharding_lib.batch_sharding(self.mesh)
        ways = batch_shards(self.mesh)
        if num_rows % (ways * self.num_microbatches):
            raise ValueError(
                f"config.data.batch_size={num_rows} must be a multiple of {ways} batch shards × "
                f"{self.num_microbatches} microbatches (config.mesh, config.loop.num_microbatches)."
            )
        indices: Any = shards.addressable_devices_indices_map((num_rows,)).values()
        spans = {index[0].indices(num_rows)[:2] for index in indices}
        start, stop = min(span[0] for span in spans), max(span[1] for span in spans)
        if sum(stop - start for start, stop in spans) != stop - start:
            raise ValueError(
                "this mesh gives a process rows that are not contiguous; order the mesh so that "
                "each process holds a run of the data and fsdp axes."
            )
        return slice(start, stop)
