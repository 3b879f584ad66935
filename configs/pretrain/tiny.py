"""A 5M-parameter decoder on the Python standard library: the quickstart's run.

    python -m jaxtrain.pretrain --config=configs/pretrain/tiny.py --workdir=runs/quickstart/pretrain

Hardware: a laptop; about 3 minutes on 2 CPU cores. The stores are made by scripts/quickstart.sh.
"""

from jaxtrain import config
from jaxtrain.run_config import RunConfig


def get_config():
    c = config.to_config_dict(RunConfig)
    c.model.vocab_size = 4096
    c.model.num_layers = 4
    c.model.d_model = 256
    c.model.num_heads = 8
    c.model.num_kv_heads = 4
    c.model.head_dim = 32
    c.model.d_ff = 704
    c.precision.recipe = "float32"

    c.data.sources = {"stdlib": {"path": "runs/quickstart/store/train"}}
    c.data.eval_sources = {"heldout": {"path": "runs/quickstart/store/heldout"}}
    c.data.batch_size = 8
    c.data.seq_len = 256
    c.data.packing = "best_fit"

    c.optim.lr = 2e-3
    c.optim.schedule = "wsd"
    c.optim.warmup_steps = 30

    c.loop.num_steps = 300
    c.loop.log_every = 10
    c.loop.eval_every = 100
    c.checkpoint.save_every = 100
    return c
