"""A small model, loss and batch in place of the decoder: the step must work for any."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxtrain.measured import Measuring, Total
from jaxtrain.optim.build import Optimizer, build
from jaxtrain.optim.config import OptimConfig
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.train.program import Program
from jaxtrain.types import Batch, LossSums

V, D, F, T = 16, 8, 8, 12
stand_in_tokens = 8 * T


class Calls(nnx.Variable):
    """Counts forward passes: state that no gradient trains."""


class Bigram(Measuring):
    """Predicts the next token from this one through one hidden layer."""

    def __init__(self, rngs: nnx.Rngs):
        def draw(shape):
            return jax.random.normal(rngs.params(), shape) * 0.3

        self.embedding = nnx.Param(draw((V, D)), axes="VD")
        self.up = nnx.Param(draw((D, F)), axes="DF")
        self.down = nnx.Param(draw((F, D)), axes="FD")
        self.scale = nnx.Param(jnp.ones((D,)), axes="D")
        self.calls = Calls(jnp.zeros((), jnp.int32))
        self.new_calls = Total(None, extent=())

    def __call__(self, inputs):
        self.new_calls.note(jnp.ones(()))
        x = self.embedding[...][inputs]
        h = jnp.tanh(jnp.einsum("btd,df->btf", x, self.up[...]))
        x = x + jnp.einsum("btf,fd->btd", h, self.down[...])
        return jnp.einsum("btd,vd->btv", x * self.scale[...][None, None], self.embedding[...])

    def settle(self):
        self.calls[...] = self.calls[...] + self.new_calls[...].astype(jnp.int32)


def loss(model, frozen, batch, rng) -> LossSums:
    """Weighted cross-entropy sums."""
    del frozen, rng
    logprobs = jax.nn.log_softmax(model(batch.inputs))
    nll = -jnp.take_along_axis(logprobs, batch.targets[..., None], axis=-1)[..., 0]
    total, weight = jnp.sum(nll * batch.loss_weights), jnp.sum(batch.loss_weights)
    return LossSums(total, weight, {"nll": (total, weight)})


def batch(rows: int = 8, seed: int = 0) -> Batch:
    """Random ids with uneven loss weights: row r has about r/rows of its targets."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, V, (rows, T + 1)).astype(np.int32)
    weights = (rng.random((rows, T)) < (np.arange(rows) + 1)[:, None] / rows).astype(np.float32)
    weights *= rng.uniform(0.2, 1.0, (rows, T)).astype(np.float32)
    positions = np.broadcast_to(np.arange(T, dtype=np.int32), (rows, T)).copy()
    return Batch(ids[:, :-1], ids[:, 1:], weights, positions, np.ones((rows, T), np.int32))


class HeldOut:
    """21 rows in batches of any size, the last filled."""

    text_bytes = 500

    def batches(self, batch_size, rows):
        whole = batch(21, seed=99)
        for first in range(0, 21, batch_size):
            part = [x[first : first + batch_size] for x in whole]
            missing = batch_size - len(part[0])
            yield Batch(*(np.pad(x, ((0, missing), (0, 0)))[rows] for x in part))


def optimizer(axes) -> Optimizer:
    """AdamW with clipping, decay and a falling rate."""
    return build(OptimConfig(lr=0.05, schedule="linear"), 20, axes, stand_in_tokens)


def program(num_devices: int = 1, **fields) -> Program:
    """A program of the stand-ins; `mesh` fields and Program fields by name."""
    names = {"data", "fsdp", "tensor"} & fields.keys()
    config = MeshConfig(**{name: fields.pop(name) for name in names})
    mesh = make_mesh(config, jax.devices()[:num_devices])
    values = {
        "make_model": lambda rng: Bigram(nnx.Rngs(rng)),
        "loss": loss,
        "make_optimizer": optimizer,
        "mesh": mesh,
        **fields,
    }
    return Program(**values)


def run(program: Program, batches, state=None):
    """Trains on the batches; returns the state and every step's metrics on the host."""
    state = program.init() if state is None else state
    history = []
    for each in batches:
        state, metrics = program.train_step(state, {}, program.put(each, len(each.inputs)))
        history.append(jax.device_get(metrics))
    return state, history


def reference_loss_and_grads(params, batch):
    """The whole batch in float64 NumPy: mean loss over all weights and its gradients."""
    p = {name: np.asarray(value, np.float64) for name, value in params.items()}
    ids, targets = batch.inputs, batch.targets
    weights = batch.loss_weights.astype(np.float64)
    x = p["embedding"][ids]
    h = np.tanh(x @ p["up"])
    y = x + h @ p["down"]
    z = (y * p["scale"]) @ p["embedding"].T
    z -= z.max(-1, keepdims=True)
    logprobs = z - np.log(np.exp(z).sum(-1, keepdims=True))
    one_hot = np.eye(V)[targets]
    loss = -(logprobs * one_hot).sum(-1)
    total = weights.sum()
    dz = (np.exp(logprobs) - one_hot) * weights[..., None] / total
    ys = y * p["scale"]
    grads = {"embedding": np.einsum("btv,btd->vd", dz, ys)}
    dys = dz @ p["embedding"]
    grads["scale"] = (dys * y).sum((0, 1))
    dy = dys * p["scale"]
    grads["down"] = np.einsum("btf,btd->fd", h, dy)
    dh = (dy @ p["down"].T) * (1 - h**2)
    grads["up"] = np.einsum("btd,btf->df", x, dh)
    dx = dy + dh @ p["up"].T
    np.add.at(grads["embedding"], ids, dx)
    return (loss * weights).sum() / total, grads
