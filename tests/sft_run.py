"""A fine-tuning run small enough for tests: one layer, conversations of bytes."""

from jaxtrain import config
from jaxtrain.run_config import RunConfig
from tests.chats import VOCAB_SIZE


def get_config():
    c = config.to_config_dict(RunConfig)
    c.model.vocab_size = VOCAB_SIZE
    c.model.num_layers = 1
    c.model.d_model = 16
    c.model.num_heads = 2
    c.model.num_kv_heads = 1
    c.model.head_dim = 8
    c.model.d_ff = 32
    c.precision.recipe = "float32"

    c.init.load = "params"
    c.data.sources = {"chat": {"path": ""}}
    c.data.batch_size = 8
    c.data.seq_len = 48
    c.data.packing = "best_fit"

    c.optim.lr = 1e-2
    c.optim.schedule = "constant"
    c.optim.warmup_steps = 0

    c.loop.num_steps = 6
    c.loop.log_every = 1
    c.checkpoint.save_every = 3
    return c
