import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxtrain import config as config_lib
from jaxtrain import import_hf, inspect
from jaxtrain.export import export
from jaxtrain.hub.model import HubModel
from jaxtrain.run_config import RunConfig
from jaxtrain.train.checkpoint_read import open_leaf, read_record
from tests.hub.tiny import V, add_tokenizer, tensors, write


def leaf(workdir, path):
    return open_leaf(workdir / "checkpoints", 0, f"params.{path}").read().result()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return HubModel(add_tokenizer(write(tmp_path_factory.mktemp("model"))))


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, model):
    path = tmp_path_factory.mktemp("runs") / "run"
    import_hf.import_model(model, path, "owner/model")
    return path


def test_a_workdir_has_all_that_other_commands_need(workdir, model, capsys):
    record = read_record(workdir / "checkpoints", 0)
    config = config_lib.resolve(RunConfig, record.metadata["config"])
    assert config.model == model.config
    assert config.precision.recipe == "float32"
    assert config.data.seq_len == 64
    plain = json.loads((workdir / "config.json").read_text())
    assert plain == record.metadata["config"]
    assert record.metadata["imported"] == {"name": "owner/model", "model_type": "llama"}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (workdir / name).read_bytes() == (model.directory / name).read_bytes()
    inspect.main([str(workdir)])
    assert "params.blocks.ffn.w_up_DF" in capsys.readouterr().out


def test_the_checkpoint_holds_the_weights_in_float32(workdir):
    content = tensors()
    np.testing.assert_array_equal(
        leaf(workdir, "embedding_VD"), content["model.embed_tokens.weight"]
    )
    second = leaf(workdir, "blocks.ffn.w_up_DF")[1]
    np.testing.assert_array_equal(second, content["model.layers.1.mlp.up_proj.weight"].T)
    assert leaf(workdir, "w_head_DV").dtype == np.float32


def test_a_used_workdir_is_refused(workdir, model):
    with pytest.raises(ValueError, match=r"--workdir=.* is there already; give one that is new"):
        import_hf.import_model(model, workdir, "again")


def test_a_model_that_does_not_fit_leaves_no_workdir(tmp_path):
    content = tensors()
    del content["model.norm.weight"]
    broken = HubModel(write(tmp_path / "broken", content))
    with pytest.raises(ValueError, match=r"model.norm.weight is missing"):
        import_hf.import_model(broken, tmp_path / "run", "broken")
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_tokenizer_is_imported_without_one(tmp_path):
    bare = HubModel(write(tmp_path / "bare", tensors("bfloat16")))
    config = import_hf.import_model(bare, tmp_path / "run", "bare")
    assert config.precision.recipe == "bfloat16"
    assert not (tmp_path / "run" / "tokenizer.json").exists()
    with pytest.raises(ValueError, match="--add_token needs a tokenizer"):
        import_hf.import_model(bare, tmp_path / "other", "bare", new_tokens=["<|x|>"])


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    content = tensors()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        content[name] = content[name][:20].copy()
    directory = add_tokenizer(write(tmp_path / "small", content, {"vocab_size": 20}))
    with pytest.raises(ValueError, match="the tokenizer has 22 ids, but vocab_size=20"):
        import_hf.import_model(HubModel(directory), tmp_path / "run", "small")


@pytest.mark.parametrize("num_new", [1, 5])
def test_added_tokens_get_rows_and_go_out_with_the_model(tmp_path, model, num_new):
    """22 of 24 rows are known tokens: one more finds room, five more make 27."""
    names = [f"<|new{number}|>" for number in range(num_new)]
    config = import_hf.import_model(model, tmp_path / "run", "m", new_tokens=names)
    num_rows = max(V, 22 + num_new)
    assert config.model.vocab_size == num_rows
    before = tensors()["model.embed_tokens.weight"]
    rows = leaf(tmp_path / "run", "embedding_VD")
    np.testing.assert_array_equal(rows[:22], before[:22])
    np.testing.assert_allclose(rows[22 : 22 + num_new], [before[:22].mean(0)] * num_new, atol=1e-6)
    export(tmp_path / "run", None, tmp_path / "out")
    added = json.loads((tmp_path / "out" / "tokenizer.json").read_text())["added_tokens"]
    assert {each["content"]: each["id"] for each in added}[names[-1]] == 21 + num_new
    head = load_file(tmp_path / "out" / "model.safetensors")["lm_head.weight"]
    assert head.shape[0] == num_rows
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == num_rows


def test_parameters_are_read_onto_the_devices_that_divide_them(model):
    shapes, _ = import_hf.target(model.config)
    assert len(shapes["embedding_VD"].sharding.device_set) == min(8, jax.local_device_count())
    assert jnp.prod(jnp.asarray(shapes["embedding_VD"].shape)) == V * 8
