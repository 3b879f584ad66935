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
from jaxtrain.models.layers import gated
from jaxtrain.models.router import Routing
from jaxtrain.parallel.mesh import BATCH_AXES, batch_shards
from jaxtrain.precision.recipe import Recipe

_NVIDIA = ("gpu", "cuda")


class Experts(NamedTuple):
    """Matrices in the compute dtype, or their specs; biases are there together or not at all."""

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


class Assigned(NamedTuple):
    """Tokens, the experts that each goes to (E: none) and their weights; or the specs of these."""

    x_BTD: Any
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
    return grouped_matmul.Spec(blocks.grouped_matmul(device))


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
    assigned = Assigned(x_BTD.astype(recipe.compute_dtype), expert, routing.weight)
    is_spread = mesh is not None and mesh.size > 1
    num_peers = 1 if mesh is None else mesh.shape["expert"]
    local = _Local(config, recipe, num_peers, is_spread, _kernel(mesh))
    run = local.dropless if config.expert_dispatch == "dropless" else local.capacity
    if mesh is None or not is_spread:
        return run(assigned, experts)
    if x_BTD.shape[0] % batch_shards(mesh):
        raise ValueError(
            f"{x_BTD.shape[0]} rows must be a multiple of the {batch_shards(mesh)} parts that "
            f"config.mesh splits a batch into ({' × '.join(BATCH_AXES)})."
        )
    rows = PartitionSpec(BATCH_AXES)
    specs = Experts(*(spec if w is not None else None for spec, w in zip(_EXPERT_SPECS, experts,
                                                                        strict=True)))  # fmt: skip
    spread = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(Assigned(rows, rows, rows), specs),
        out_specs=(rows, rows),
        check_vma=False,  # gradients of our own (recipe, grouped matmul) know of no mesh
    )
    return spread(assigned, experts)


@dataclasses.dataclass(frozen=True)
class _Local:
    """What one device does with the rows it has."""

    config: ModelConfig
    recipe: Recipe
    num_peers: int  # devices that hold the experts together
    is_spread: bool  # inside of a shard_map
    kernel: grouped_matmul.Spec | None

    def dropless(self, assigned: Assigned, experts: Experts) -> tuple[jax.Array, jax.Array]:
        """See the module."""
        x_BTD, expert, weight = assigned
        num_chosen = expert.shape[-1]
        rows = jnp.repeat(x_BTD.reshape(-1, x_BTD.shape[-1]), num_chosen, axis=0)
        compute = functools.partial(self._grouped, experts=experts)
        outs = self._exchanged(compute, rows, expert.ravel(), num_chosen)
        out_BTD = self._combined(outs.reshape(*expert.shape, -1), weight, x_BTD)
        return out_BTD, _zeros(expert)

    def _exchanged(
        self, compute: Callable, rows: jax.Array, expert: jax.Array, num_chosen: int
    ) -> jax.Array:
        """compute(rows, expert) where the experts are; each peer has room for all of another's."""
        if self.num_peers == 1:
            return compute(rows, expert)
        num_local = (self.config.num_experts or 0) // self.num_peers
        room = len(rows) // num_chosen * min(num_chosen, num_local)
        peer = expert // num_local  # num_peers where the expert is none
        is_for = peer[:, None] == jnp.arange(self.num_peers)[None]
        place = jnp.take_along_axis(
            jnp.cumsum(is_for, axis=0) - 1, jnp.minimum(peer, self.num_peers - 1)[:, None], axis=1
        )[:, 0]
        slot = jnp.where(peer < self.num_peers, peer * room + place, self.num_peers * room)
        sent = _scattered(rows, slot, self.num_peers * room)
        wanted = jnp.full((self.num_peers * room,), num_local, expert.dtype)
        wanted = wanted.at[slot].set(expert % num_local, mode="drop")
        swap = functools.partial(lax.all_to_all, axis_name="expert", split_axis=0, concat_axis=0,
                                 tiled=True)  # fmt: skip
        outs = swap(compute(swap(sent), swap(wanted)))
        return jnp.take(outs, slot, axis=0, mode="fill", fill_value=0)

    def _grouped(self, rows: jax.Array, expert: jax.Array, experts: Experts) -> jax.Array:
        """Each row through its expert; rows without one give 0."""
        kernel = self.kernel
        smallest = grouped.SMALLEST_BLOCK if kernel is None else grouped_matmul.LEAST
        layout = grouped.lay_out(expert, experts.w_up_EDF.shape[0], smallest)

        def times(x: jax.Array, w: jax.Array, bias: jax.Array | None) -> jax.Array:
            out: Any = (
                grouped.grouped_matmul(x, w, layout, self._precision)
                if kernel is None
                else grouped_matmul.grouped_matmul(kernel, x, w, layout.expert, layout.num_used)
            )
            return out if bias is None else out + bias[layout.expert][:, None]

        x = layout.gather(rows)
        gate = times(x, experts.w_gate_EDF, experts.b_gate_EF)
        up = times(x, experts.w_up_EDF, experts.b_up_EF)
        hidden = gated(self.config.activation, gate, up)
        return layout.scatter(times(hidden, experts.w_down_EFD, self._b_down(experts)))

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
        rows = jnp.tile(x_BTD, (1, num_chosen, 1))
        scatter = functools.partial(_scattered, num_slots=num_experts * room)
        x_BECD = jax.vmap(scatter)(rows, slot).reshape(num_rows, num_experts, room, -1)
        out_BECD = self._at_experts(x_BECD, experts)
        flat = out_BECD.reshape(num_rows, num_experts * room, -1)
        take = functools.partial(jnp.take, axis=0, mode="fill", fill_value=0)
        outs = jax.vmap(take)(flat, slot).reshape(num_rows, num_chosen, length, -1)
        out_BTD = self._combined(outs.swapaxes(1, 2), weight, x_BTD)
        return out_BTD, jnp.sum(has_expert & ~fits, axis=-1).astype(jnp.float32)

    def _at_experts(self, x_BECD: jax.Array, experts: Experts) -> jax.Array:
        """The experts on their places of all rows, where the experts are."""
        num_rows, num_experts, room, width = x_BECD.shape
        x_ECD = x_BECD.swapaxes(0, 1).reshape(num_experts, num_rows * room, width)
        swap = functools.partial(lax.all_to_all, axis_name="expert", tiled=True)
        if self.num_peers > 1:
            x_ECD = swap(x_ECD, split_axis=0, concat_axis=1)

        def times(x: jax.Array, w: jax.Array, bias: jax.Array | None) -> jax.Array:
            out = self.recipe.dot_general(x, w, dimension_numbers=(((2,), (1,)), ((0,), (0,))))
            return out if bias is None else out + bias[:, None]

        gate = times(x_ECD, experts.w_gate_EDF, experts.b_gate_EF)
        up = times(x_ECD, experts.w_up_EDF, experts.b_up_EF)
        hidden = gated(self.config.activation, gate, up)
        out_ECD = times(hidden, experts.w_down_EFD, self._b_down(experts))
        if self.num_peers > 1:
            out_ECD = swap(out_ECD, split_axis=1, concat_axis=0)
        return out_ECD.reshape(num_experts, num_rows, room, width).swapaxes(0, 1)

    @property
    def _precision(self) -> lax.Precision | None:
        return lax.Precision.HIGHEST if self.recipe.compute_dtype == jnp.float32 else None

    def _b_down(self, experts: Experts) -> jax.Array | None:
        """Added by one of the devices whose outputs are added up."""
        b_ED = experts.b_down_ED
        if b_ED is None or not self.is_spread:
            return b_ED
        return jnp.where(lax.axis_index("tensor") == 0, b_ED, 0)

    def _combined(self, outs: jax.Array, weight: jax.Array, x_BTD: jax.Array) -> jax.Array:
        """Σ weight · output over a token's experts, and over the parts of their width."""
        out_BTD = jnp.sum(outs.astype(jnp.float32) * weight[..., None], axis=2)
        out_BTD = lax.psum(out_BTD, "tensor") if self.is_spread else out_BTD
        return out_BTD.astype(x_BTD.dtype)


def capacity(config: ModelConfig, length: int) -> int:
    """Places of an expert in a row of `length` tokens; no more than there are tokens."""
    assert config.num_experts, config
    even = config.num_experts_per_token * length / config.num_experts
    return min(length, max(1, math.ceil(config.expert_capacity_factor * even)))


def _scattered(rows: jax.Array, slot: jax.Array, num_slots: int) -> jax.Array:
    """Rows at their slots, 0 elsewhere; slots are unique but for `num_slots`, which is none."""
    return jnp.zeros((num_slots, rows.shape[-1]), rows.dtype).at[slot].add(rows, mode="drop")


def _zeros(expert: jax.Array) -> Any:
    """0 for each row; made of an input, so that it is as spread as that is."""
    return jnp.sum(expert * 0, axis=(1, 2)).astype(jnp.float32)
