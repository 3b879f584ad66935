"""How tokens reach the experts that a router chose for them, on one device or on a mesh.

    dropless   gather each expert's rows in blocks, multiply each by its expert's matrices
               (`grouped.py`; on NVIDIA GPUs `kernels.grouped_matmul`), put the rows back
    capacity   each expert has C = ceil(factor · k · T / E) places in each row of the batch; first
               choices come first, then second ones (GShard, arXiv 2006.16668), in order of
               position; what finds no place is dropped and its token goes on with its other experts

On a mesh each device routes the rows it has. Experts are split over the `expert` axis, which splits
rows too, so assignments travel by all-to-all and their results come back the same way; the width of
an expert is split over `tensor`, whose parts are added up at the end. Under dropless each device
has room for all that another can send it, so nothing is dropped whatever the router does.

A row of the batch is one device's, so that its capacity is the same on every mesh. Filler takes no
place and is computed by no expert.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Bool, Float

from jaxtrain.kernels import blocks, grouped_matmul
from jaxtrain.models import grouped
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.expert_products import InBlocks, Placed
from jaxtrain.models.expert_weights import ExpertWeight, prepare, prepare_input
from jaxtrain.models.layers import gated
from jaxtrain.models.router import Routing
from jaxtrain.parallel.mesh import BATCH_AXES, batch_shards
from jaxtrain.precision.operands import Operand
from jaxtrain.precision.recipe import Recipe

_NVIDIA = ("gpu", "cuda")


class Experts(NamedTuple):
    """Weights as a model has them, then `ExpertWeight`s; or specs. Biases: all of them or none."""

    w_gate_EDF: Any
    w_up_EDF: Any
    w_down_EFD: Any
    b_gate_EF: Any = None
    b_up_EF: Any = None
    b_down_ED: Any = None


_EXPERT_SPECS = Experts(
    PartitionSpec("expert", None, "tensor"),
    PartitionSpec("expert", None, "tensor"),
    PartitionSpec("expert", "tensor", None),
    PartitionSpec("expert", "tensor"),
    PartitionSpec("expert", "tensor"),
    PartitionSpec("expert", None),
)


MATRICES = Experts._fields[:3]


class Assigned(NamedTuple):
    """Tokens, the experts that each goes to (E: none) and their weights; or the specs of these."""

    x_BTD: Any  # jax.Array, or Operand of what is in FP8
    expert: Any  # of jax.Array [B, T, chosen]
    weight: Any  # of jax.Array [B, T, chosen]


def choice(config: ModelConfig, platform: str) -> tuple[str, str]:
    """What config.expert_dispatch means here and why, for the start-up report.

    Raises:
      ValueError: where it would not run as what it is.
    """
    kind = config.expert_dispatch
    if kind == "dropless" and platform not in ("cpu", *_NVIDIA):
        raise ValueError(
            f"expert_dispatch='dropless' has no kernel on {platform}: one block of rows after "
            "the other would leave it idle. Take capacity or dense."
        )
    on_gpu = "tokens in blocks by expert, our own grouped matmul kernel, not yet timed on a GPU"
    return kind, {
        "dense": "every expert computes every token, E / k times the work",
        "capacity": f"{config.expert_capacity_factor:g} × an even load per row; drops are counted",
        "dropless": on_gpu
        if platform in _NVIDIA
        else "tokens in blocks by expert, one matmul after the other",
    }[kind]


def _kernel(mesh: Mesh | None) -> grouped_matmul.Spec | None:
    """The grouped matmul kernel for the devices that will run; None: they have no use of one."""
    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    if device.platform not in _NVIDIA:
        return None
    return grouped_matmul.Spec(blocks.grouped_matmul(device), blocks.has_fp8(device))


def dispatch(
    config: ModelConfig,
    recipe: Recipe,
    mesh: Mesh | None,
    x_BTD: Float[jax.Array, "B T D"],
    routing: Routing,
    is_token_BT: Bool[jax.Array, "B T"] | None,
    experts: Experts,
) -> tuple[Float[jax.Array, "B T D"], Float[jax.Array, "B"]]:
    """(The experts' weighted outputs, how many assignments of each row were dropped).

    Raises:
      ValueError: where the mesh does not divide the rows.
    """
    expert, num_experts = routing.expert, routing.logits_BTE.shape[-1]
    if is_token_BT is not None:
        expert = jnp.where(is_token_BT[..., None], expert, num_experts)
    is_spread = mesh is not None and mesh.size > 1
    x = prepare_input(x_BTD, recipe, (experts.w_gate_EDF, experts.w_up_EDF))
    assigned = Assigned(x, expert, routing.weight)
    num_devices, num_peers = (1, 1) if mesh is None else (mesh.size, mesh.shape["expert"])
    experts = experts._replace(
        **{name: prepare(getattr(experts, name), recipe, num_devices) for name in MATRICES}
    )
    axes = tuple(mesh.axis_names) if mesh is not None and is_spread else ()
    local = _Local(config, num_peers, axes, _kernel(mesh))
    run = local.dropless if config.expert_dispatch == "dropless" else local.capacity
    if mesh is None or not is_spread:
        return run(assigned, experts)
    if x_BTD.shape[0] % batch_shards(mesh):
        raise ValueError(
            f"{x_BTD.shape[0]} rows must be a multiple of the {batch_shards(mesh)} parts that "
            f"config.mesh splits a batch into ({' × '.join(BATCH_AXES)})."
        )
    rows = PartitionSpec(BATCH_AXES)
    spread = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(Assigned(_spec_of_rows(x), rows, rows), _specs(experts, axes)),
        out_specs=(rows, rows),
        check_vma=False,  # gradients of our own (recipe, grouped matmul) know of no mesh
    )
    return spread(assigned, experts)


def _spec_of_rows(x: jax.Array | Operand) -> Any:
    rows = PartitionSpec(BATCH_AXES)
    return Operand(rows, rows, PartitionSpec()) if isinstance(x, Operand) else rows


def _specs(experts: Experts, axes: tuple[str, ...]) -> Experts:
    pairs = zip(experts, _EXPERT_SPECS, strict=True)
    found = (w.specs(spec, axes) if isinstance(w, ExpertWeight) else spec for w, spec in pairs)
    return Experts(**dict(zip(Experts._fields, found, strict=True)))


def _moved(x: Any, move: Callable[[jax.Array], jax.Array]) -> Any:
    """Rows elsewhere, be they an array or in FP8."""
    return x.moved(move) if isinstance(x, Operand) else move(x)


@dataclasses.dataclass(frozen=True)
class _Local:
    """What one device does with the rows it has."""

    config: ModelConfig
    num_peers: int  # devices that hold the experts together
    axes: tuple[str, ...]  # of the shard_map that this is inside of, if any
    kernel: grouped_matmul.Spec | None

    def dropless(self, assigned: Assigned, experts: Experts) -> tuple[jax.Array, jax.Array]:
        """See the module."""
        x_BTD, expert, weight = assigned
        num_chosen = expert.shape[-1]
        rows = _moved(x_BTD, lambda x: jnp.repeat(x.reshape(-1, x.shape[-1]), num_chosen, axis=0))
        compute = functools.partial(self._grouped, experts=experts)
        outs = self._exchanged(compute, rows, expert.ravel(), num_chosen)
        return self._combined(outs.reshape(*expert.shape, -1), weight), _zeros(expert)

    def _exchanged(
        self, compute: Callable, rows: Any, expert: jax.Array, num_chosen: int
    ) -> jax.Array:
        """compute(rows, expert) where the experts are; each peer has room for all of another's."""
        if self.num_peers == 1:
            return compute(rows, expert)
        num_local = (self.config.num_experts or 0) // self.num_peers
        room = len(expert) // num_chosen * min(num_chosen, num_local)
        peer = expert // num_local  # num_peers where the expert is none
        is_for = peer[:, None] == jnp.arange(self.num_peers)[None]
        place = jnp.take_along_axis(
            jnp.cumsum(is_for, axis=0) - 1, jnp.minimum(peer, self.num_peers - 1)[:, None], axis=1
        )[:, 0]
        slot = jnp.where(peer < self.num_peers, peer * room + place, self.num_peers * room)
        swap = functools.partial(lax.all_to_all, axis_name="expert", split_axis=0, concat_axis=0,
                                 tiled=True)  # fmt: skip
        sent = _moved(rows, lambda x: swap(grouped.scattered(x, slot, self.num_peers * room)))
        wanted = jnp.full((self.num_peers * room,), num_local, expert.dtype)
        wanted = wanted.at[slot].set(expert % num_local, mode="drop")
        outs = swap(compute(sent, swap(wanted)))
        return jnp.take(outs, slot, axis=0, mode="fill", fill_value=0)

    def _grouped(self, rows: Any, expert: jax.Array, experts: Experts) -> jax.Array:
        """Each row through its expert; rows without one give 0."""
        num_experts = experts.w_up_EDF.num_experts
        layout = grouped.lay_out(expert, num_experts, self._smallest_block(experts))
        products = InBlocks(self.kernel, num_experts)

        def times(x: Any, w: ExpertWeight, bias: jax.Array | None) -> jax.Array:
            out = w.times(x, products, layout, self.axes)
            return out if bias is None else _plus(out, bias[layout.expert])

        return layout.scatter(self._through(times, _moved(rows, layout.gather), experts))

    def _smallest_block(self, experts: Experts) -> int:
        if self.kernel is None:
            return grouped.SMALLEST_BLOCK
        in_fp8 = any(getattr(experts, name).is_fp8 for name in MATRICES)
        return grouped_matmul.LEAST_IN_FP8 if in_fp8 else grouped_matmul.LEAST

    def _through(self, times: Callable, x: Any, experts: Experts) -> jax.Array:
        """What a feed-forward makes of x, where times(x, w, bias) are its products."""
        gate = times(x, experts.w_gate_EDF, experts.b_gate_EF)
        up = times(x, experts.w_up_EDF, experts.b_up_EF)
        hidden = gated(self.config.activation, gate, up)
        return times(hidden, experts.w_down_EFD, self._b_down(experts))

    def capacity(self, assigned: Assigned, experts: Experts) -> tuple[jax.Array, jax.Array]:
        """See the module."""
        x_BTD, expert, weight = assigned
        num_rows, length, num_chosen = expert.shape
        num_experts = self.config.num_experts or 0
        room = capacity(self.config, length)
        by_choice = expert.swapaxes(1, 2).reshape(num_rows, -1)  # first choices first
        is_for = by_choice[..., None] == jnp.arange(num_experts)[None, None]
        place = jnp.sum(jnp.where(is_for, jnp.cumsum(is_for, axis=1) - 1, 0), axis=-1)
        has_expert = by_choice < num_experts
        fits = has_expert & (place < room)
        slot = jnp.where(fits, by_choice * room + place, num_experts * room)
        scatter = jax.vmap(functools.partial(grouped.scattered, num_slots=num_experts * room))

        def placed(x_BTD: jax.Array) -> jax.Array:
            rows = scatter(jnp.tile(x_BTD, (1, num_chosen, 1)), slot)
            return rows.reshape(num_rows, num_experts, room, -1)

        out_BECD = self._at_experts(_moved(x_BTD, placed), experts, room)
        flat = out_BECD.reshape(num_rows, num_experts * room, -1)
        take = functools.partial(jnp.take, axis=0, mode="fill", fill_value=0)
        outs = jax.vmap(take)(flat, slot).reshape(num_rows, num_chosen, length, -1)
        out_BTD = self._combined(outs.swapaxes(1, 2), weight)
        return out_BTD, jnp.sum(has_expert & ~fits, axis=-1).astype(jnp.float32)

    def _at_experts(self, x_BECD: Any, experts: Experts, room: int) -> jax.Array:
        """The experts on their places of all rows, where the experts are."""
        swap = functools.partial(lax.all_to_all, axis_name="expert", tiled=True)

        def by_expert(x_BECD: jax.Array) -> jax.Array:
            num_rows, num_experts, _, width = x_BECD.shape
            x_ECD = x_BECD.swapaxes(0, 1).reshape(num_experts, num_rows * room, width)
            return swap(x_ECD, split_axis=0, concat_axis=1) if self.num_peers > 1 else x_ECD

        def times(x: Any, w: ExpertWeight, bias: jax.Array | None) -> jax.Array:
            out = w.times(x, Placed(), None, self.axes)
            return out if bias is None else _plus(out, bias)

        out_ECD = self._through(times, _moved(x_BECD, by_expert), experts)
        if self.num_peers > 1:
            out_ECD = swap(out_ECD, split_axis=1, concat_axis=0)
        num_experts, _, width = out_ECD.shape
        return out_ECD.reshape(num_experts, -1, room, width).swapaxes(0, 1)

    def _b_down(self, experts: Experts) -> jax.Array | None:
        """Added by one of the devices whose outputs are added up."""
        b_ED = experts.b_down_ED
        if b_ED is None or not self.axes:
            return b_ED
        return jnp.where(lax.axis_index("tensor") == 0, b_ED, 0)

    def _combined(self, outs: jax.Array, weight: jax.Array) -> jax.Array:
        """Σ weight · output over a token's experts, and over the parts of their width."""
        out_BTD = jnp.sum(outs.astype(jnp.float32) * weight[..., None], axis=2)
        out_BTD = lax.psum(out_BTD, "tensor") if self.axes else out_BTD
        return out_BTD.astype(outs.dtype)


def capacity(config: ModelConfig, length: int) -> int:
    """Places of an expert in a row of `length` tokens; no more than there are tokens."""
    assert config.num_experts, config
    even = config.num_experts_per_token * length / config.num_experts
    return min(length, max(1, math.ceil(config.expert_capacity_factor * even)))


def _plus(out: jax.Array, bias: jax.Array) -> jax.Array:
    """Added in float32, as then the bias's gradient is, a sum over rows."""
    return (out.astype(jnp.float32) + bias[:, None]).astype(out.dtype)


def _zeros(expert: jax.Array) -> Any:
    """0 for each row; made of an input, so that it is as spread as that is."""
    return jnp.sum(expert * 0, axis=(1, 2)).astype(jnp.float32)
