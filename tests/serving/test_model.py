"""Models are loaded whole or refused with the reason."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain import config as config_lib
from jaxtrain.decode.sampling import Sampling
from jaxtrain.hub.model import HubModel
from jaxtrain.lora.config import LoraConfig
from jaxtrain.run_config import InitConfig, RunConfig
from jaxtrain.serving.answers import Ask, answer_all
from jaxtrain.serving.model import from_hub, from_workdir
from jaxtrain.tokenizer.training import Training
from jaxtrain.train.checkpoint_read import read_record
from tests.lora_runs import save_run


def test_a_workdir_gives_its_latest_checkpoint(text_model, chat_workdir):
    assert text_model.name.endswith("step 3")
    assert text_model.recipe == "float32"
    ends = {text_model.tokenizer.control_id(name) for name in ("eos", "<|end|>")}
    assert set(text_model.end_ids) == ends
    assert text_model.prompt_ids("red")[0] == text_model.tokenizer.control_id("bos")


def test_a_run_that_states_no_context_has_that_of_its_rows(text_model, chat_workdir):
    record = read_record(chat_workdir / "checkpoints", 3).metadata["config"]
    assert record["model"]["context_len"] is None
    assert text_model.default_max_len == record["data"]["seq_len"]


def test_a_model_without_a_template_does_not_converse(chat_workdir, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(chat_workdir, copy)
    (copy / "chat_template.jinja").unlink()
    model = from_workdir(copy)
    assert model.end_ids == (model.tokenizer.control_id("eos"),)
    with pytest.raises(ValueError, match="has no chat template"):
        model.chat()


@pytest.mark.parametrize("name", ["generation_config.json", "hub/generation_config.json"])
def test_answers_end_where_the_model_declares_too(chat_workdir, tmp_path, name):
    copy = tmp_path / "copy"
    shutil.copytree(chat_workdir, copy)
    path = copy / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"eos_token_id": [7, 9]}')
    model = from_workdir(copy)
    assert {7, 9, model.tokenizer.control_id("eos")} < set(model.end_ids)
    path.write_text('{"eos_token_id": 99999}')
    with pytest.raises(ValueError, match=r"end at ids .*99999.* see eos_token_id in generation"):
        from_workdir(copy)
    path.write_text('{"eos_token_id": "<|eos|>"}')
    with pytest.raises(ValueError, match=r"eos_token_id='<\|eos\|>' must be an id or a list"):
        from_workdir(copy)


def test_a_template_that_fails_keeps_no_model_from_continuing_texts(chat_workdir, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(chat_workdir, copy)
    (copy / "chat_template.jinja").write_text("{{ raise_exception('only tools') }}")
    assert from_workdir(copy).end_ids == (from_workdir(copy).tokenizer.control_id("eos"),)


def test_a_workdir_that_cannot_write_text_is_refused(chat_workdir, tmp_path):
    with pytest.raises(ValueError, match="has no whole checkpoint; train one first"):
        from_workdir(tmp_path)
    with pytest.raises(ValueError, match=r"step 4 .* does not exist; whole ones are 3"):
        from_workdir(chat_workdir, 4)
    copy = tmp_path / "copy"
    shutil.copytree(chat_workdir, copy)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"holds no tokenizer\.json"):
        from_workdir(copy)
    Training("bpe", 280, num_reserved=0).train(["red foxes ran by older oaks " * 9] * 3).save(copy)
    with pytest.raises(ValueError, match="the tokenizer has 280 ids, but the model"):
        from_workdir(copy)


def test_a_lora_workdir_gives_its_base_with_the_updates(chat_workdir, text_model, tmp_path):
    config = config_lib.resolve(
        RunConfig, read_record(chat_workdir / "checkpoints", 3).metadata["config"]
    )
    lora = LoraConfig(rank=2, alpha=6.0, targets=("*.w_up_DF",))
    init = InitConfig(f"{chat_workdir}@3", "params")
    copy = tmp_path / "copy"
    shutil.copytree(chat_workdir, copy, ignore=shutil.ignore_patterns("checkpoints"))
    _, updates, _ = save_run(copy, dataclasses.replace(config, lora=lora, init=init))
    found = from_workdir(copy).params["blocks"]["ffn"]
    base = text_model.params["blocks"]["ffn"]
    a, b = (np.asarray(x, np.float64) for x in updates["blocks"]["ffn"]["w_up_DF"].values())
    expected = base["w_up_DF"] + 3 * np.einsum("ldr,lrf->ldf", a, b)
    np.testing.assert_allclose(found["w_up_DF"], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found["w_gate_DF"], base["w_gate_DF"])


def test_more_devices_than_there_are_is_refused(chat_workdir):
    with pytest.raises(ValueError, match="--num_tensor=9 must be from 1 to the 8 device"):
        from_workdir(chat_workdir, num_tensor=9)


def test_devices_that_do_not_divide_the_model_are_refused(chat_workdir):
    with pytest.raises(ValueError, match=r"--num_tensor=8 does not fit .* must divide"):
        from_workdir(chat_workdir, num_tensor=8)


def test_a_model_split_over_devices_answers_the_same(chat_workdir, text_model, text_engine):
    halved = from_workdir(chat_workdir, num_tensor=2)
    leaves = jax.tree.leaves(halved.params)
    assert any(len(leaf.sharding.device_set) == 2 for leaf in leaves)
    ask = Ask(text_model.prompt_ids("red fox"), 8)
    engine = halved.engine(max_len=64, num_slots=2, chunk=4)
    pieces = [
        list(answer_all(m, e, [ask])) for m, e in ((text_model, text_engine), (halved, engine))
    ]
    ids, logprobs = (
        [[value for _, piece in each for value in getattr(piece, name)] for each in pieces]
        for name in ("ids", "logprobs")
    )
    assert ids[0] == ids[1]
    np.testing.assert_allclose(logprobs[0], logprobs[1], atol=1e-5)


def test_its_own_modules_propose_as_many_tokens_as_they_are(text_model):
    config = dataclasses.replace(text_model.config, num_mtp_layers=2)
    model = dataclasses.replace(text_model, config=config)
    assert [model.own_draft(num).num_tokens for num in (None, 1, 5)] == [2, 1, 5]
    with pytest.raises(
        ValueError, match=r"no modules of multi-token prediction \(num_mtp_layers=0"
    ):
        text_model.own_draft(None)


@pytest.mark.shared
def test_a_hub_model_gives_its_published_sample(shared_dir):
    directory = shared_dir / "data" / "model-stories260k"
    if not directory.is_dir():
        pytest.skip("no model-stories260k among the shared data")
    model = from_hub(HubModel(directory / "hf"))
    ask = Ask(model.prompt_ids(""), 60, Sampling(temperature=0.0))
    engine = model.engine(max_len=64, num_slots=1)
    text = "".join(piece.text for _, piece in answer_all(model, engine, [ask]))
    published = (directory / "stories260K.md").read_text()
    assert text.startswith("Once upon a time, there was a little girl named Lily.")
    assert text in published


def test_the_hash_of_weights_is_of_their_values(text_model):
    same = dataclasses.replace(
        text_model, name="elsewhere", params=jax.tree.map(jnp.copy, text_model.params)
    )
    assert same.weights_hash() == text_model.weights_hash()
    other = jax.tree.map(lambda x: x.at[(0,) * x.ndim].add(1e-3), text_model.params)
    assert dataclasses.replace(text_model, params=other).weights_hash() != same.weights_hash()
