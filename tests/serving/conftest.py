"""A small untrained model with a tokenizer and a chat template, as a run leaves it."""

import jax
import pytest

from jaxtrain import config as config_lib
from jaxtrain import config_program
from jaxtrain.chat.source import TEMPLATE_FILE, teach
from jaxtrain.models.parameters import split
from jaxtrain.serving.model import TextModel, from_workdir
from jaxtrain.tokenizer.training import Training
from jaxtrain.train.checkpoint import CheckpointConfig, Checkpoints
from tests.engines import made_idle


@pytest.fixture(scope="session")
def chat_workdir(tmp_path_factory, tiny_config):
    path = tmp_path_factory.mktemp("chat")
    learnt = Training("bpe", 270, num_reserved=0).train(["red fox runs by an old oak " * 5] * 3)
    tokenizer, source = teach(learnt, "seed")
    config = tiny_config({"model.vocab_size": tokenizer.vocab_size + 1})
    params = split(config_program.model_maker(config)(jax.random.key(0))).params
    with Checkpoints(path / "checkpoints", CheckpointConfig()) as checkpoints:
        checkpoints.save(3, {"params": params}, {"config": config_lib.to_plain(config)})
    tokenizer.save(path)
    (path / TEMPLATE_FILE).write_text(source)
    return path


@pytest.fixture(scope="session")
def text_model(chat_workdir) -> TextModel:
    return from_workdir(chat_workdir)


@pytest.fixture(scope="session")
def shared_engine(text_model):
    return text_model.engine(max_len=64, num_slots=2, chunk=4)


@pytest.fixture
def text_engine(shared_engine):
    """Idle, whatever a test before has left in it."""
    return made_idle(shared_engine)
