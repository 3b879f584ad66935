import pathlib
import shutil

import jax
import jax.numpy as jnp
import pytest

from jaxtrain import config as config_lib
from jaxtrain import generate, stage
from jaxtrain.models.parameters import split
from jaxtrain.tokenizer.bpe import train
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints


@pytest.fixture(scope="module")
def tokenizer():
    return train(["red fox runs by an old oak " * 5] * 3, 270)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, tokenizer, tiny_config):
    """An untrained model with a tokenizer, as a run leaves it."""
    path = tmp_path_factory.mktemp("run")
    config = tiny_config({"model.vocab_size": 270})
    params = split(stage.model_maker(config)(jax.random.key(0))).params
    with Checkpoints(path / "checkpoints", CheckpointConfig()) as checkpoints:
        checkpoints.save(3, {"params": params}, {"config": config_lib.to_plain(config)})
    tokenizer.save(path)
    return path


def test_greedy_text_is_the_most_likely_continuation(workdir, tokenizer, tiny_config):
    text, step = generate.generate(workdir, None, "red", 5, 0.0, seed=0)
    config = tiny_config({"model.vocab_size": 270})
    model = stage.model_maker(config)(jax.random.key(0))
    ids = [tokenizer.control_id("bos"), *tokenizer.encode("red").tolist()]
    start = len(ids)
    for _ in range(5):
        row = jnp.asarray([ids], jnp.int32)
        logits = model(row, jnp.arange(len(ids), dtype=jnp.int32)[None])
        ids.append(int(jnp.argmax(logits[0, -1])))
    assert (text, step) == (tokenizer.decode(ids[start:]), 3)


def test_sampled_text_depends_on_the_seed_alone(workdir):
    texts = [generate.generate(workdir, 3, "", 20, 1.0, seed)[0] for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_a_workdir_that_cannot_write_text_is_refused(workdir, tmp_path):
    with pytest.raises(ValueError, match="has no whole checkpoint; train one first"):
        generate.generate(tmp_path, None, "", 5, 0.0, 0)
    with pytest.raises(ValueError, match=r"step 4 .* does not exist; whole ones are 3"):
        generate.generate(workdir, 4, "", 5, 0.0, 0)
    copy = tmp_path / "copy"
    shutil.copytree(workdir, copy)
    pathlib.Path(copy / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"holds no tokenizer\.json"):
        generate.generate(copy, None, "", 5, 0.0, 0)


@pytest.mark.parametrize(
    ("num_tokens", "temperature"), [(0, 1.0), (5, -0.1), (5, float("nan")), (10**11, 1.0)]
)
def test_impossible_settings_are_refused(workdir, num_tokens, temperature):
    with pytest.raises(ValueError, match="must be from 1 to 65536, --temperature="):
        generate.generate(workdir, None, "", num_tokens, temperature, 0)
