"""Stored models, merged where they are a base with low-rank updates, against float64."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxtrain import config as config_lib
from jaxtrain import run_config, stored_weights
from jaxtrain.export import export
from jaxtrain.hub import companions
from jaxtrain.hub.model import HubModel
from jaxtrain.lora.adapters import BASE
from jaxtrain.models.parameters import flatten
from jaxtrain.starting_point import StartingPoint
from jaxtrain.stored_weights import Body, Merged, OfCheckpoint, OfHub
from tests.hub.tiny import tensors, write
from tests.lora_runs import STEP, lora_config, make_program, save_run, save_whole

PRODUCTS = {
    "blocks.attention.w_q_DNH": "ldr,lrnh->ldnh",
    "blocks.attention.w_o_NHD": "lnhr,lrd->lnhd",
    "blocks.ffn.w_up_DF": "ldr,lrf->ldf",
}
TARGETS = tuple(PRODUCTS)
SCALE = 3.0  # alpha 6, rank 2


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A Llama of three layers."""
    return write(tmp_path_factory.mktemp("base") / "llama")


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def run(request, base, tmp_path_factory):
    """(workdir, program, updates) of a LoRA run on it."""
    config = lora_config(base, HubModel(base), targets=TARGETS, base_dtype=request.param)
    workdir = tmp_path_factory.mktemp("run")
    program, params, _ = save_run(workdir, config)
    return workdir, program, params


def load(weights, program):
    """All parameters on one device."""
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        program.model.params,
    )
    return flatten(stored_weights.load(weights, abstract, program.model.axes))


def test_merged_parameters_are_base_and_scaled_product(run, base):
    workdir, program, params = run
    weights = stored_weights.of_checkpoint(workdir / "checkpoints", STEP)
    assert isinstance(weights, Merged)
    found, updates = load(weights, program), flatten(params)
    plain = load(OfHub(HubModel(base)), program)
    for path, leaf in plain.items():
        is_held_short = weights.lora.base_dtype == "bfloat16" and leaf.ndim > 1 + path.startswith(
            "blocks"
        )
        held = np.asarray(leaf)
        held = held.astype(ml_dtypes.bfloat16).astype(np.float32) if is_held_short else held
        assert found[path].dtype == jnp.float32
        if path not in PRODUCTS:
            np.testing.assert_array_equal(found[path], held, err_msg=path)
            continue
        a, b = (np.asarray(updates[f"{path}.{name}"], np.float64) for name in "ab")
        expected = held + SCALE * np.einsum(PRODUCTS[path], a, b)
        assert np.abs(expected - held).max() > 0.1
        np.testing.assert_allclose(found[path], expected, rtol=1e-6, atol=1e-6)


def test_rows_are_those_of_the_parameters(run):
    workdir, program, _ = run
    weights = stored_weights.of_checkpoint(workdir / "checkpoints", STEP)
    found = load(weights, program)
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        program.model.params,
    )
    parts = stored_weights.parts_of(weights.open(abstract, program.model.axes))
    np.testing.assert_array_equal(
        parts("blocks.ffn.w_up_DF", (slice(1, 3),)), found["blocks.ffn.w_up_DF"][1:3]
    )


def test_another_base_is_refused_by_its_content(run, tmp_path):
    workdir, program, _ = run
    content = tensors()
    content["model.layers.1.mlp.up_proj.weight"][0, 0] += 0.5
    other = write(tmp_path / "other", content)
    weights = stored_weights.of_checkpoint(workdir / "checkpoints", STEP, str(other))
    with pytest.raises(ValueError, match=r"other is another model .*: blocks\.ffn\.w_up_DF has"):
        load(weights, program)


def test_the_same_base_elsewhere_is_taken(run, base, tmp_path):
    workdir, program, _ = run
    shutil.copytree(base, tmp_path / "moved")
    found, expected = (
        load(stored_weights.of_checkpoint(workdir / "checkpoints", STEP, where), program)
        for where in (str(tmp_path / "moved"), None)
    )
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf)


def test_a_base_that_is_gone_is_named(run, tmp_path):
    workdir, *_ = run
    with pytest.raises(
        ValueError, match=r"4 holds low-rank updates only, and .*gone is neither .* Put it back"
    ):
        stored_weights.of_checkpoint(workdir / "checkpoints", STEP, str(tmp_path / "gone"))


@pytest.mark.parametrize("name", ["", "@x", "@4@5"])
def test_a_name_of_nothing_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="neither the directory of a Hugging Face model nor"):
        stored_weights.named(f"{tmp_path}{name}")


def test_a_lora_run_can_be_the_base_of_another(run, base, tmp_path):
    """The second run's base is the first's merged model, found by WORKDIR@STEP."""
    workdir, program, _ = run
    first = load(stored_weights.of_checkpoint(workdir / "checkpoints", STEP), program)
    config = lora_config(f"{workdir}@{STEP}", HubModel(base), targets=("*.w_down_FD",))
    second, params, _ = save_run(tmp_path, config)
    found = load(stored_weights.of_checkpoint(tmp_path / "checkpoints", STEP), second)
    path = "blocks.ffn.w_down_FD"
    a, b = (np.asarray(leaf, np.float64) for leaf in flatten(params).values())
    expected = np.asarray(first[path]) + SCALE * np.einsum("lfr,lrd->lfd", a, b)
    np.testing.assert_allclose(found[path], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found["embedding_VD"], first["embedding_VD"])


def test_a_run_keeps_what_an_export_gives_back_of_an_imported_model(base, tmp_path):
    """From the directory, from a run that started there, and by no way where there is none."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    stored_weights.keep_origin(OfHub(HubModel(base)), first)
    stored_weights.keep_origin(OfCheckpoint(first / "checkpoints", 4), second)
    stored_weights.keep_origin(OfCheckpoint(second / "checkpoints", 4), second)  # it goes on
    expected = json.loads((base / "config.json").read_text())
    assert companions.origin(second, "config.json") == expected
    stored_weights.keep_origin(OfCheckpoint(third / "checkpoints", 4), second)
    assert companions.origin(second, "config.json") is None


# ------------------------------------------------------------------ scorers from language models


def scorer_config(bases, kind, **lora):
    """A run of a reward model on the Llama."""
    config = lora_config(bases[kind], HubModel(bases["hub"]), **lora)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, scalar_head=True))


@pytest.fixture(scope="module")
def bases(base, tmp_path_factory):
    """The same language model as a directory, and as a run's checkpoint of parameters."""
    workdir = tmp_path_factory.mktemp("imported")
    config = lora_config(base, HubModel(base), rank=None)
    program = make_program(config)
    params = stored_weights.load(OfHub(HubModel(base)), program.abstract_state.params, program.axes)
    save_whole(workdir, config, params)
    return {"hub": base, "checkpoint": workdir}


@pytest.fixture(scope="module")
def language_model(base):
    """Its parameters by dotted path."""
    program = make_program(lora_config(base, HubModel(base), rank=None))
    return flatten(
        stored_weights.load(OfHub(HubModel(base)), program.abstract_state.params, program.axes)
    )


def start_of(config):
    stored = stored_weights.named(str(config.init.from_))
    return StartingPoint("", weights=stored_weights.fitting(stored, config.model))


@pytest.mark.parametrize("kind", ["hub", "checkpoint"])
def test_a_scorer_has_all_of_a_language_model_but_its_head(bases, language_model, kind):
    config = scorer_config(bases, kind, rank=None)
    start, program = start_of(config), make_program(config)
    assert isinstance(start.weights, Body)
    assert start.weights.name == bases[kind].name
    start.check(program)
    params = flatten(start.load(program).params)
    np.testing.assert_array_equal(params.pop("w_score_D"), program.init().params["w_score_D"])
    assert params.keys() == language_model.keys() - {"w_head_DV"}
    for path, leaf in params.items():
        np.testing.assert_array_equal(leaf, language_model[path], err_msg=path)


@pytest.mark.parametrize("kind", ["hub", "checkpoint"])
def test_a_scorer_of_low_rank_freezes_the_language_model_and_trains_its_head(
    bases, language_model, kind
):
    config = scorer_config(bases, kind)
    start, program = start_of(config), make_program(config)
    start.check(program)
    frozen = flatten(start.load_frozen(program)[BASE])
    assert frozen.keys() == language_model.keys() - {"w_head_DV"}
    for path, leaf in frozen.items():
        np.testing.assert_array_equal(leaf, language_model[path], err_msg=path)
    trained = flatten(program.abstract_state.params)
    whole = {path for path in trained if not path.endswith((".a", ".b"))}
    assert whole == {"w_score_D"}


def test_a_scorer_of_low_rank_goes_out_merged_with_its_head_and_in_again(bases, tmp_path):
    config = scorer_config(bases, "hub", targets=TARGETS)
    program, params, frozen = save_run(tmp_path / "run", config)
    merged = stored_weights.of_checkpoint(tmp_path / "run" / "checkpoints", STEP)
    assert isinstance(merged, Merged)
    assert merged.config.scalar_head
    found = load(merged, program)
    np.testing.assert_array_equal(found["w_score_D"], params["w_score_D"])
    path = "blocks.ffn.w_up_DF"
    a, b = (np.asarray(flatten(params)[f"{path}.{name}"], np.float64) for name in "ab")
    expected = flatten(frozen[BASE])[path] + SCALE * np.einsum(PRODUCTS[path], a, b)
    np.testing.assert_allclose(found[path], expected, rtol=1e-6, atol=1e-6)
    export(tmp_path / "run", None, tmp_path / "out", "float32")
    again = stored_weights.named(str(tmp_path / "out"))
    assert again.config.scalar_head
    assert stored_weights.fitting(again, config.model) is again
    for name, leaf in load(again, program).items():
        np.testing.assert_array_equal(leaf, found[name], err_msg=name)


def test_weights_fit_a_model_with_their_own_head_as_they_are(base, tmp_path):
    stored = OfHub(HubModel(base))
    assert stored_weights.fitting(stored, stored.config) is stored
    scorer = dataclasses.replace(stored.config, scalar_head=True, vocab_multiple=4)
    body = stored_weights.fitting(stored, scorer)
    assert isinstance(body, Body)
    assert body.config == dataclasses.replace(stored.config, vocab_multiple=4)
    assert (body.where, body.name) == (stored.where, stored.name)
    stored_weights.keep_origin(body, tmp_path)
    assert companions.origin(tmp_path, "config.json") == json.loads(
        (base / "config.json").read_text()
    )


def test_a_stored_model_says_its_shape(bases, base):
    shape = HubModel(base).config
    for name in bases.values():
        assert stored_weights.named(str(name)).config == shape
    config = run_config.of_model(shape, "float32")
    assert config_lib.to_plain(config.model) == config_lib.to_plain(shape)
