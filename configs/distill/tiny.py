"""What the quickstart's model has learnt, into one of a tenth of its size, on its conversations.

    python -m jaxtrain.distill --config=configs/distill/tiny.py --workdir=runs/quickstart/distill

Hardware: a laptop; about half a minute on 2 CPU cores.
"""

from jaxtrain import config
from jaxtrain.run_config import DistillRun


def get_config():
    c = config.to_config_dict(DistillRun)
    c.model.vocab_size = 4096
    c.model.num_layers = 2
    c.model.d_model = 64
    c.model.num_heads = 4
    c.model.num_kv_heads = 2
    c.model.head_dim = 16
    c.model.d_ff = 176
    c.model.tied_head = True
    c.precision.recipe = "float32"

    c.teacher["from"] = "runs/quickstart/dpo"

    c.data.sources = {"chat": {"path": "runs/quickstart/store/chat"}}
    c.data.eval_sources = {"heldout": {"path": "runs/quickstart/store/chat-heldout"}}
    c.data.batch_size = 16
    c.data.seq_len = 256
    c.data.packing = "best_fit"

    c.optim.lr = 3e-3
    c.optim.schedule = "cosine"
    c.optim.warmup_steps = 10

    c.loop.num_steps = 100
    c.loop.log_every = 10
    c.checkpoint.save_every = 100
    return c
