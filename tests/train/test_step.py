import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxtrain.measured import Largest
from jaxtrain.train import step as step_lib
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints
from jaxtrain.types import Batch
from tests.train import stand_in


def sgd(axes):
    """Plain gradient descent at rate 1: the update is the gradient."""
    del axes
    return step_lib_optimizer(optax.sgd(1.0))


def step_lib_optimizer(transform):
    from jaxtrain.optim.build import Optimizer

    return Optimizer(transform, lambda count: jnp.float32(1.0), "sgd")


def gradients(**fields):
    """(loss, gradients) that one step applied, on the given mesh and accumulation."""
    program = stand_in.program(make_optimizer=sgd, **fields)
    before = jax.device_get(program.init().params)
    state, (metrics,) = stand_in.run(program, [stand_in.batch()])
    after = jax.device_get(state.params)
    return metrics, jax.tree.map(lambda a, b: a.astype(np.float64) - b, before, after)


@pytest.fixture(scope="module")
def reference():
    params = jax.device_get(stand_in.program().init().params)
    return stand_in.reference_loss_and_grads(params, stand_in.batch())


MESHES = [
    {},
    {"num_devices": 8},
    {"num_devices": 8, "data": 1, "fsdp": 0},
    {"num_devices": 4, "data": 1, "tensor": 4},
    {"num_devices": 8, "data": 2, "fsdp": 2, "tensor": 2},
]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_loss_and_gradients_equal_float64_on_every_mesh(reference, mesh):
    metrics, grads = gradients(**mesh)
    loss, expected = reference
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    for name, grad in grads.items():
        # The update is read off parameters of size ~1, so float32 rounding there is the floor.
        np.testing.assert_allclose(grad, expected[name], rtol=1e-5, atol=2e-7, err_msg=name)


@pytest.mark.parametrize("zero", ["zero1", "zero2", "zero3"])
def test_loss_and_gradients_equal_float64_under_every_zero_table(reference, zero):
    metrics, grads = gradients(num_devices=4, data=2, fsdp=2, sharding=zero)
    assert metrics["loss"] == pytest.approx(reference[0], rel=1e-5)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, reference[1][name], rtol=1e-5, atol=2e-7, err_msg=name)


def mean_of_means(params, batch, num):
    """What a naive accumulation computes: the mean of the microbatches' mean losses."""
    parts = [Batch(*(x[index::num] for x in batch)) for index in range(num)]
    return np.mean([stand_in.reference_loss_and_grads(params, part)[0] for part in parts])


@pytest.mark.parametrize("num", [1, 2, 4])
def test_microbatches_equal_the_whole_batch_under_uneven_weights(reference, num):
    metrics, grads = gradients(num_microbatches=num)
    loss, expected = reference
    assert metrics["loss"] == pytest.approx(loss, rel=1e-6)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, expected[name], rtol=1e-5, atol=2e-7, err_msg=name)
    if num > 1:  # the test above tells the two apart
        params = jax.device_get(stand_in.program().init().params)
        naive = mean_of_means(params, stand_in.batch(), num)
        assert abs(naive - loss) > 1e-4


@pytest.mark.parametrize("fields", [{"data": 2}, {"data": 1, "fsdp": 2}], ids=str)
def test_rows_with_12_and_90_targets_count_by_target_not_by_device(fields):
    """PRE-02: a device with few targets has no more say for it."""
    rng = np.random.default_rng(3)
    ids = rng.integers(0, stand_in.V, (2, 91)).astype(np.int32)
    weights = np.ones((2, 90), np.float32)
    weights[0, 12:] = 0
    ones = np.ones((2, 90), np.int32)
    batch = Batch(ids[:, :-1], ids[:, 1:], weights, np.cumsum(ones, 1) - 1, ones)
    alone = stand_in.run(stand_in.program(), [batch])[1][0]
    split = stand_in.run(stand_in.program(num_devices=2, **fields), [batch])[1][0]
    params = jax.device_get(stand_in.program().init().params)
    expected, grads = stand_in.reference_loss_and_grads(params, batch)
    norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
    for metrics in (alone, split):
        assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
        assert metrics["target_weight"] == 102


def poisoned(batch):
    """The batch with a non-finite loss."""
    weights = batch.loss_weights.copy()
    weights[0, 0] = np.nan
    return batch._replace(loss_weights=weights)


@pytest.mark.parametrize(
    "spoil",
    [poisoned, lambda b: b._replace(loss_weights=np.zeros_like(b.loss_weights))],
    ids=["not finite", "no targets"],
)
def test_a_step_that_cannot_be_applied_changes_only_counters(spoil):
    """PRE-08, PRE-09: a batch without targets, and one whose loss is not finite."""
    program = stand_in.program()
    batches = [stand_in.batch(seed=seed) for seed in range(4)]
    state, _ = stand_in.run(program, batches[:2])
    before = jax.device_get(state)
    state, (metrics,) = stand_in.run(program, [spoil(batches[2])], state)
    after = jax.device_get(state)
    for part in ("params", "opt_state", "nontrained"):
        jax.tree.map(np.testing.assert_array_equal, getattr(before, part), getattr(after, part))
    assert (after.step, after.skipped, after.skipped_in_row, after.num_updates) == (3, 1, 1, 2)
    assert metrics["update_norm"] == 0
    # The schedule runs on applied updates: the next step uses the rate the skipped one had.
    state, (next_metrics,) = stand_in.run(program, batches[3:], state)
    assert next_metrics["lr"] == metrics["lr"]
    assert np.isfinite(next_metrics["loss"])
    assert (int(state.skipped), int(state.skipped_in_row)) == (1, 0)


def test_skipped_updates_in_a_row_are_counted():
    bad = poisoned(stand_in.batch())
    state, _ = stand_in.run(stand_in.program(), [bad, bad, bad])
    assert int(state.skipped_in_row) == 3


def test_nontrained_state_moves_once_per_update_by_what_all_microbatches_measured():
    state, _ = stand_in.run(stand_in.program(num_microbatches=4), [stand_in.batch()] * 2)
    assert int(state.nontrained["calls"]) == 8


def test_each_step_and_microbatch_gets_its_own_key():
    seen = []

    def loss(model, frozen, batch, rng):
        jax.debug.callback(lambda data: seen.append(tuple(data.tolist())), jax.random.key_data(rng))
        return stand_in.loss(model, frozen, batch, rng)

    stand_in.run(stand_in.program(loss=loss, num_microbatches=4), [stand_in.batch()] * 3)
    jax.effects_barrier()
    assert len(set(seen)) == len(seen) == 12


def test_filler_rows_of_the_last_batch_train_nothing_under_accumulation():
    """PRE-03: 5 real rows of 8 in 4 microbatches."""
    batch = stand_in.batch()
    real = np.arange(8) < 5
    filled = batch._replace(
        loss_weights=batch.loss_weights * real[:, None].astype(np.float32),
        segment_ids=batch.segment_ids * real[:, None].astype(np.int32),
    )
    alone = Batch(*(x[:5] for x in batch))
    params = jax.device_get(stand_in.program().init().params)
    _, (metrics,) = stand_in.run(stand_in.program(num_microbatches=4), [filled])
    assert metrics["loss"] == pytest.approx(
        stand_in.reference_loss_and_grads(params, alone)[0], rel=1e-6
    )
    assert metrics["batch_tokens"] == 5 * stand_in.T


def test_metrics_hold_norms_of_parameters_by_group_and_of_the_update():
    program = stand_in.program()
    before = jax.device_get(program.init().params)
    state, (metrics,) = stand_in.run(program, [stand_in.batch()])
    after = jax.device_get(state.params)

    def norm(tree):
        return np.sqrt(sum((np.asarray(x, np.float64) ** 2).sum() for x in jax.tree.leaves(tree)))

    assert metrics["param_norm"] == pytest.approx(norm(after), rel=1e-5)
    assert metrics["param_norm/up"] == pytest.approx(norm(after["up"]), rel=1e-5)
    update = jax.tree.map(lambda a, b: a.astype(np.float64) - b, after, before)
    assert metrics["update_norm"] == pytest.approx(norm(update), rel=1e-4)


def test_split_rows_leaves_each_row_on_its_device():
    program = stand_in.program(num_devices=4)
    x = program.put(np.arange(16, dtype=np.int32)[:, None], 16)
    split = jax.jit(lambda x: step_lib.split_rows(x, 2, program.mesh))(x)
    assert split.shape == (2, 8, 1)
    where = {shard.device: set(np.ravel(shard.data)) for shard in x.addressable_shards}
    for shard in split.addressable_shards:
        assert set(np.ravel(shard.data)) == where[shard.device]


def test_eval_step_gives_the_sums_of_the_loss_without_a_key():
    program = stand_in.program()
    batch = stand_in.batch()
    sums = program.eval_step(program.init(), {}, program.put(batch, 8))
    params = jax.device_get(program.init().params)
    expected = stand_in.reference_loss_and_grads(params, batch)[0]
    assert float(sums.loss_sum / sums.weight_sum) == pytest.approx(expected, rel=1e-6)


def with_infinite_gradient(model, frozen, batch, rng):
    """The stand-in's loss; its gradient is infinite where a batch's first segment id is 9."""
    sums = stand_in.loss(model, frozen, batch, rng)
    scale = model.scale[...][0]
    zero = scale - jax.lax.stop_gradient(scale)
    root = jnp.sqrt(zero + jnp.where(batch.segment_ids[0, 0] == 9, 0.0, 1.0))  # d√x/dx = ∞ at 0
    return sums._replace(loss_sum=sums.loss_sum + root - jax.lax.stop_gradient(root))


def test_a_gradient_that_is_not_finite_under_a_finite_loss_changes_only_counters():
    """PRE-09: clipping, which is on, cannot repair it; the next step goes on without it."""
    program = stand_in.program(loss=with_infinite_gradient)
    batches = [stand_in.batch(seed=seed) for seed in range(4)]
    bad = batches[2]._replace(segment_ids=np.full_like(batches[2].segment_ids, 9))
    state, _ = stand_in.run(program, batches[:2])
    before = jax.device_get(state)
    state, (metrics,) = stand_in.run(program, [bad], state)
    assert np.isfinite(metrics["loss"])
    assert not np.isfinite(metrics["grad_norm"])
    after = jax.device_get(state)
    for part in ("params", "opt_state", "nontrained"):
        jax.tree.map(np.testing.assert_array_equal, getattr(before, part), getattr(after, part))
    assert (after.step, after.skipped, after.skipped_in_row, after.num_updates) == (3, 1, 1, 2)
    state, (next_metrics,) = stand_in.run(program, batches[3:], state)
    assert np.isfinite(next_metrics["loss"])
    assert next_metrics["lr"] == metrics["lr"]
    assert (int(state.skipped), int(state.skipped_in_row)) == (1, 0)
    assert not np.array_equal(state.params["up"], after.params["up"])


class History(nnx.Variable):
    """The largest values seen, newest first: what fp8 scales are made from."""


class Watched(stand_in.Bigram):
    """Keeps the largest embedding that went in, as recipes with delayed scaling do."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.amax = History(jnp.full((2,), 0.125, jnp.float32))
        self.seen = Largest(None, extent=())

    def watch(self, inputs, scales):
        """Notes the embeddings of `inputs`, each times its scale."""
        self.seen.note(jnp.max(jnp.abs(self.embedding[...][inputs] * scales[..., None])))

    def settle(self):
        super().settle()
        self.amax[...] = self.amax[...].at[0].max(self.seen[...])


def watched_loss(model, frozen, batch, rng):
    """The stand-in's loss; a row's loss weight doubles as the scale of what is watched."""
    model.watch(batch.inputs, batch.loss_weights)
    return stand_in.loss(model, frozen, batch, rng)


def test_nontrained_maximum_is_that_over_all_microbatches_and_is_saved_with_every_bit(tmp_path):
    """PRE-10: of 4 microbatches the first is 8 times as large; the last must not replace it."""
    program = stand_in.program(
        make_model=lambda rng: Watched(nnx.Rngs(rng)), loss=watched_loss, num_microbatches=4
    )
    batch = stand_in.batch()
    first = np.arange(8) % 4 == 0  # rows of microbatch 0
    scales = np.where(first, 8, 1)[:, None] * np.ones((8, stand_in.T))
    batch = batch._replace(loss_weights=scales.astype(np.float32))
    params = jax.device_get(program.init().params)
    seen = np.abs(params["embedding"][batch.inputs]).max((1, 2)) * scales[:, 0]
    assert seen[first].max() > 2 * seen[~first].max() > 0.25

    state, _ = stand_in.run(program, [batch])
    amax = jax.device_get(state.nontrained["amax"])
    np.testing.assert_array_equal(amax, np.float32([seen[first].max(), 0.125]))

    with Checkpoints(tmp_path, CheckpointConfig(save_every=1)) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        restored = checkpoints.restore(1, program.abstract_state)
    assert np.asarray(restored.nontrained["amax"]).tobytes() == amax.tobytes()
    small = batch._replace(loss_weights=np.ones_like(batch.loss_weights))
    state, _ = stand_in.run(program, [small], restored)  # goes on from there, not from the start
    np.testing.assert_array_equal(state.nontrained["amax"], amax)


def test_metrics_tell_real_tokens_from_trained_ones_and_from_positions():
    """MET-02: two rows of 9 tokens, 4 of them trained, in rows of 64 positions."""
    inside = np.broadcast_to(np.arange(64) < 9, (2, 64)).astype(np.int32)
    trained = inside * (np.arange(64) >= 5)
    ids = np.ones((2, 64), np.int32)
    batch = Batch(ids, ids, trained.astype(np.float32), inside * np.arange(64, dtype=np.int32),
                  inside)  # fmt: skip
    _, (metrics,) = stand_in.run(stand_in.program(), [batch])
    assert metrics["batch_tokens"] == 18
    assert metrics["target_weight"] == 8
    assert metrics["batch_positions"] == 128
