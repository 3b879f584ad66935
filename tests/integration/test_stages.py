"""Every stage is one program: split, spread over meshes, padded or packed, it is the same."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest

from jaxtrain.data.loader import Loader
from jaxtrain.data.teacher import TeacherStore
from jaxtrain.lora.adapters import BASE
from jaxtrain.models.parameters import flatten
from jaxtrain.optim.build import build
from jaxtrain.optim.config import OptimConfig
from tests.stage_steps import Steps, moved, spread
from tests.stages import SEQ_LEN, STAGES

NAMES = list(STAGES)
(OPTIMIZERS,) = (
    each.metadata["choices"] for each in dataclasses.fields(OptimConfig) if each.name == "name"
)


@pytest.mark.parametrize("name", NAMES)
def test_the_step_is_made_by_the_one_function_of_pretraining(stages, name):
    """Code that was compiled from the same lines of source is one object."""
    mine, pretraining = (stages.started(each).program for each in (name, "pretrain"))
    for step in ("train_step", "eval_step"):
        codes = [getattr(each, step).__wrapped__.__code__ for each in (mine, pretraining)]
        assert codes[0] is codes[1]


# --------------------------------------------------------- accumulation and meshes, of each stage


@pytest.fixture(scope="module")
def gradients(stages):
    """(metrics, gradients) of a stage's first batch, a little off where the run starts."""
    known = {}

    def make(name, **split):
        key = (name, *split.items())
        if key not in known:
            start = stages.started(name)
            steps = Steps(spread(start, **split), start, moved(start.state.params))
            known[key] = steps.gradients(start.batch())
        return known[key]

    return make


def assert_same(found, expected, params):
    """Metrics and gradients, each leaf relative to its largest gradient."""
    for metric, value in expected[0].items():
        assert found[0][metric] == pytest.approx(value, rel=1e-5, abs=1e-6), metric
    assert any(np.abs(grad).max() > 1e-3 for grad in expected[1].values())
    for path, grad in expected[1].items():
        # An update is read off parameters, whose float32 rounding is the floor.
        floor = 1.2e-7 * max(1.0, np.abs(params[path]).max())
        atol = 1e-5 * np.abs(grad).max() + floor
        np.testing.assert_allclose(found[1][path], grad, rtol=0, atol=atol, err_msg=path)


SPLITS = [
    pytest.param({"num_microbatches": 4}, id="accumulated over 4"),
    pytest.param(
        {"num_devices": 8, "num_microbatches": 2, "data": 2, "fsdp": 2, "tensor": 2},
        id="data 2 fsdp 2 tensor 2, accumulated over 2",
    ),
    pytest.param({"num_microbatches": 2}, id="accumulated over 2", marks=pytest.mark.slow),
    pytest.param({"num_devices": 8, "data": 8}, id="data 8", marks=pytest.mark.slow),
    pytest.param({"num_devices": 8, "data": 1, "fsdp": 8}, id="fsdp 8", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_that_is_split_has_the_loss_and_gradients_of_the_whole(
    stages, gradients, name, split
):
    params = flatten(stages.started(name).state.params)
    assert_same(gradients(name, **split), gradients(name), params)


# ------------------------------------------------------------------------ packing and padding


def whole_epoch(start, seq_len=None):
    """All rows of a stage's data as one batch, with what was computed of them ahead.

    Args:
      seq_len: None: as many as there are tokens.
    """
    found: dict[str, Any] = {}
    for path in start.workdir.glob("reference/*.npy"):
        found["references"] = {"rows": np.load(path)}
    for path in start.workdir.glob("teacher/*"):
        found["teachers"] = {"rows": TeacherStore(str(path))}
    (source,) = start.loop.source.sources
    seq_len = seq_len or source.store.num_tokens
    data = dataclasses.replace(start.config.data, seq_len=seq_len, exhausted="stop")
    loader = Loader(data, 0, **found)
    assert loader.num_steps == 1
    return loader.batch(0)


def with_filler(batch, num):
    """The batch with so many more positions at the end of each row."""
    (length,) = {x.shape[1] for x in jax.tree.leaves(batch) if x.shape[1] > 8}
    return jax.tree.map(
        lambda x: np.pad(x, [(0, 0), (0, num * (x.shape[1] == length)), *[(0, 0)] * (x.ndim - 2)]),
        batch,
    )


def shape_of(batch):
    """(rows that are not filler, most segments of a row)."""
    segment_ids = getattr(batch, "tokens", batch).segment_ids
    return int((segment_ids > 0).any(axis=1).sum()), int(segment_ids.max())


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_depends_on_no_packing_and_no_padding(stages, name):
    """One group a row, with little filler and with much; three groups; all of them in one row."""
    start, length = stages.started(name), SEQ_LEN[STAGES[name].data]
    steps = Steps(spread(start), start, moved(start.state.params))
    alone, three, together = (whole_epoch(start, each) for each in (length, 3 * length, None))
    size = shape_of(alone)[1]  # documents of a group
    assert shape_of(alone)[0] == 8 > shape_of(three)[0]
    assert size < shape_of(three)[1]
    assert shape_of(together) == (1, 8 * size)
    expected = steps.sums(alone)
    assert expected["loss"] > 0.1
    for batch in (with_filler(alone, 2 * length), three, together):
        assert steps.sums(batch) == pytest.approx(expected, rel=1e-5, abs=1e-6)


# ------------------------------------------------------------------- low-rank updates, optimizers


@pytest.fixture(scope="module")
def start_lora(stages, tmp_path_factory):
    """Starts a stage with updates of rank 2."""
    known = {}

    def start(name):
        if name not in known:
            workdir = tmp_path_factory.mktemp("lora")
            given = {"init__from": stages.base, "lora__rank": 2}
            known[name] = stages.start(name, workdir, **given)
        return known[name]

    return start


@pytest.mark.parametrize("name", NAMES)
def test_low_rank_updates_are_trained_beside_the_base(stages, start_lora, name):
    start = start_lora(name)
    paths = flatten(start.program.abstract_state.params)
    assert all(path.rpartition(".")[2] in ("a", "b", "w_score_D") for path in paths)
    assert BASE in start.frozen
    steps = Steps(spread(start), start)
    metrics, grads = steps.gradients(start.batch())
    assert all(math.isfinite(value) for value in metrics.values())
    assert not metrics["skipped"]
    assert all(np.abs(grad).max() > 0 for path, grad in grads.items() if path.endswith(".b"))
    if STAGES[name].launcher == "dpo":
        if STAGES[name].flags.get("reference.runs") == "in_step":
            # The reference is the base itself: held once.
            assert start.program.others["reference"].tree == BASE
            assert set(start.frozen) == {BASE}
        assert metrics["rewards/chosen"] == pytest.approx(0, abs=1e-6)
        assert metrics["rewards/rejected"] == pytest.approx(0, abs=1e-6)
    if name.startswith("dpo"):
        assert metrics["loss"] == pytest.approx(math.log(2), abs=1e-6)
        assert metrics["rewards/margin"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("is_lora", [False, True], ids=["whole", "lora"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_takes_a_step_of_preference_learning(
    stages, start_lora, optimizer, is_lora
):
    start = start_lora("dpo_ahead") if is_lora else stages.started("dpo_ahead")
    config = dataclasses.replace(start.config.optim, name=optimizer)
    program = spread(start, optimizer=lambda axes: build(config, 4, axes, ((0, 256),)))
    steps = Steps(program, start)
    first, second = (steps.step(start.batch()) for _ in range(2))
    assert all(math.isfinite(value) for value in second.values())
    assert first["update_norm"] > 0
    assert second["loss"] < first["loss"]
