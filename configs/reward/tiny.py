"""A reward model out of the quickstart's: a function's own body scores above a wrong one.

    python scripts/stdlib_chats.py --out runs/quickstart/chats
    python -m jaxtrain.tokenize answers --input runs/quickstart/chats/pairs-train.jsonl \\
        --tokenizer runs/quickstart/sft --max_len 256 --too_long left \\
        --out runs/quickstart/store/pairs
    python -m jaxtrain.reward --config=configs/reward/tiny.py --workdir=runs/quickstart/reward

Hardware: a laptop; about a minute on 2 CPU cores. The loss starts near ln 2 = 0.6931.
"""

from jaxtrain import config
from jaxtrain.run_config import RewardRun


def get_config():
    c = config.to_config_dict(RewardRun)
    c.model.vocab_size = 4096
    c.model.num_layers = 4
    c.model.d_model = 256
    c.model.num_heads = 8
    c.model.num_kv_heads = 4
    c.model.head_dim = 32
    c.model.d_ff = 704
    c.model.context_len = 256  # of a conversation; a row holds a pair
    c.model.scalar_head = True
    c.precision.recipe = "float32"

    c.init["from"] = "runs/quickstart/sft"
    c.init.load = "params"

    c.data.sources = {"pairs": {"path": "runs/quickstart/store/pairs"}}
    c.data.eval_sources = {"heldout": {"path": "runs/quickstart/store/pairs-heldout"}}
    c.data.batch_size = 8
    c.data.seq_len = 512
    c.data.packing = "best_fit"

    c.optim.lr = 1e-4
    c.optim.schedule = "cosine"
    c.optim.warmup_steps = 5

    c.loop.num_steps = 60
    c.loop.log_every = 10
    c.checkpoint.save_every = 60
    return c
