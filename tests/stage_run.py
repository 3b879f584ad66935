"""Runs of every stage that are small enough for tests: one layer, eight rows a batch, all data."""

from jaxtrain import config, run_config
from tests.chats import VOCAB_SIZE


def get_config(tree="RunConfig"):
    c = config.to_config_dict(getattr(run_config, tree))
    c.model.vocab_size = VOCAB_SIZE
    c.model.num_layers = 1
    c.model.d_model = 16
    c.model.num_heads = 2
    c.model.num_kv_heads = 2
    c.model.head_dim = 8
    c.model.d_ff = 32
    c.model.attention = "xla"  # compiling is what these tests cost
    c.precision.recipe = "float32"

    c.init.load = "params"
    c.data.sources = {"rows": {"path": ""}}
    c.data.eval_sources = {"heldout": {"path": ""}}
    c.data.batch_size = 8
    c.data.packing = "best_fit"

    c.optim.lr = 1e-2
    c.optim.schedule = "constant"
    c.optim.weight_decay = 0.0
    c.mesh.data = 1

    c.loop.num_steps = 4
    c.loop.log_every = 1
    c.checkpoint.save_every = 2
    return c
