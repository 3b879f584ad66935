import dataclasses
import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxtrain import config as config_lib
from jaxtrain import config_program, import_hf
from jaxtrain.export import export
from jaxtrain.hub.model import HubModel
from jaxtrain.losses.xent import XentConfig, cross_entropy
from jaxtrain.models.parameters import split
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints
from jaxtrain.types import Batch
from tests.hub.families.parity import QUICK, import_model
from tests.hub.tiny import add_tokenizer, tensors, write


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    model = HubModel(add_tokenizer(write(tmp_path_factory.mktemp("model"), tensors("float16"),
                                         {"torch_dtype": "float16"})))  # fmt: skip
    path = tmp_path_factory.mktemp("runs") / "run"
    import_hf.import_model(model, path, "m")
    return model, path


def test_an_imported_model_goes_back_bit_for_bit_with_its_files(imported, tmp_path):
    model, workdir = imported
    summary = export(workdir, None, tmp_path / "out")
    assert "LlamaForCausalLM" in summary
    assert "in float16" in summary
    again = load_file(tmp_path / "out" / "model.safetensors")
    for name, expected in tensors("float16").items():
        assert again[name].tobytes() == expected.tobytes(), name
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        before, after = (
            json.loads((d / name).read_text()) for d in (model.directory, tmp_path / "out")
        )
        assert before == after
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    kept = {name: value for name, value in model.hf.items() if name != "rope_scaling"}
    assert {name: written[name] for name in kept} == kept


def test_the_asked_dtype_is_written_and_stated(imported, tmp_path):
    export(imported[1], 0, tmp_path / "out", "float32")
    again = load_file(tmp_path / "out" / "model.safetensors")
    assert {x.dtype for x in again.values()} == {np.dtype(np.float32)}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "float32"


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(imported, tmp_path):
    _, workdir = imported
    with pytest.raises(ValueError, match="has no whole checkpoint; train or import one first"):
        export(tmp_path, None, tmp_path / "out")
    with pytest.raises(ValueError, match=r"step 9 .* does not exist"):
        export(workdir, 9, tmp_path / "out")
    with pytest.raises(ValueError, match="--family=qwen3 cannot express qk_norm='none'"):
        export(workdir, None, tmp_path / "out", None, "qwen3")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(ValueError, match=r"--out=.* is there already"):
        export(workdir, None, tmp_path / "out")


def test_the_family_can_be_chosen_where_it_computes_the_same(imported, tmp_path):
    export(imported[1], None, tmp_path / "out", None, "mistral")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["model_type"], written["sliding_window"]) == ("mistral", None)
    assert HubModel(tmp_path / "out").config == imported[0].config


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_config):
    """A run of our own, one update old, with a vocabulary padded from 64 to 80 rows."""
    config = tiny_config({"model.vocab_multiple": 80, "model.dropout": 0.0, "loop.num_steps": 1})
    make = config_program.model_maker(config)
    model = split(jax.eval_shape(make, jax.random.key(0)))
    init = jax.jit(lambda rng: split(make(rng)).params, compiler_options=QUICK)
    loss = cross_entropy(XentConfig())

    @functools.partial(jax.jit, compiler_options=QUICK)
    def update(params, batch):
        grads = jax.grad(lambda p: loss(model.bind(p, {}), {}, batch, None).loss_sum)(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)

    ids = jnp.asarray(np.random.default_rng(0).integers(0, 64, (2, 16)), jnp.int32)
    positions = jnp.tile(jnp.arange(16, dtype=jnp.int32), (2, 1))
    ones = jnp.ones((2, 16), jnp.float32)
    params = update(
        init(jax.random.key(0)), Batch(ids, (ids + 1) % 64, ones, positions, positions * 0 + 1)
    )
    path = tmp_path_factory.mktemp("own")
    metadata = {"config": config_lib.to_plain(config), "metrics": {"eval/loss": 2.5}}
    with Checkpoints(path / "checkpoints", CheckpointConfig()) as checkpoints:
        checkpoints.save(1, {"params": params}, metadata)
    (path / "card.json").write_text(json.dumps({"documents": 7}))
    return path, config, params, model, (ids, positions)


def test_padding_of_the_vocabulary_is_not_exported(trained, tmp_path):
    path, config, params, model, inputs = trained
    assert params["embedding_VD"].shape[0] == 80
    export(path, None, tmp_path / "out", "float32")
    again = load_file(tmp_path / "out" / "model.safetensors")
    assert again["model.embed_tokens.weight"].shape[0] == 64
    assert again["lm_head.weight"].shape[0] == 64
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 64
    reloaded = import_model(tmp_path / "out")

    def logits(bind, params):
        return jax.jit(lambda p: bind(p, {})(*inputs), compiler_options=QUICK)(params)

    before = logits(model.bind, params)
    assert before.shape[-1] == 64
    np.testing.assert_allclose(logits(reloaded.parts.bind, reloaded.params), before, atol=1e-6)
    assert dataclasses.replace(reloaded.model.config, context_len=None).vocab_multiple == 1
    assert config.model.vocab_multiple == 80


def test_a_model_of_our_own_goes_out_in_bfloat16_with_its_context_card_and_metrics(
    trained, tmp_path
):
    path, config, _, _, _ = trained
    export(path, None, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["torch_dtype"] == "bfloat16"
    assert written["max_position_embeddings"] == config.data.seq_len
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| eval/loss | 2.5000 |" in text
    assert '"documents": 7' in text
    assert json.loads((tmp_path / "out" / "data_card.json").read_text()) == {"documents": 7}


def test_another_models_checkpoint_is_refused(trained, tmp_path):
    path, config, params, _, _ = trained
    copy = tmp_path / "copy"
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("checkpoints"))
    other = dataclasses.replace(config.model, d_ff=8)
    plain = config_lib.to_plain(dataclasses.replace(config, model=other))
    with Checkpoints(copy / "checkpoints", CheckpointConfig()) as checkpoints:
        checkpoints.save(1, {"params": params}, {"config": plain})
    with pytest.raises(ValueError, match=r"params.blocks.ffn.w_up_DF is float32"):
        export(copy, None, tmp_path / "out")
    assert not (tmp_path / "out").exists()
