"""A run small enough for tests: two layers on a store of patterned ids, with dropout."""

from jaxtrain import config
from jaxtrain.run_config import RunConfig

VOCAB = 64


def get_config():
    c = config.to_config_dict(RunConfig)
    c.model.vocab_size = VOCAB
    c.model.num_layers = 2
    c.model.d_model = 32
    c.model.num_heads = 4
    c.model.num_kv_heads = 2
    c.model.head_dim = 8
    c.model.d_ff = 64
    c.model.dropout = 0.1
    c.precision.recipe = "float32"

    c.data.sources = {"a": {"path": "", "weight": 0.7}, "b": {"path": "", "weight": 0.3}}
    c.data.batch_size = 8
    c.data.seq_len = 32
    c.data.packing = "best_fit"

    c.optim.lr = 1e-2
    c.optim.warmup_steps = 2

    c.loop.num_steps = 20
    c.loop.log_every = 1
    c.checkpoint.save_every = 7
    return c
