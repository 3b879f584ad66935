"""Fine-tuning of the quickstart's model: a function asked for by its docstring, and the function.

    python scripts/stdlib_chats.py --out runs/quickstart/chats
    python -m jaxtrain.tokenize chat --input runs/quickstart/chats/train.jsonl \\
        --tokenizer runs/quickstart/pretrain --chat_template seed --max_len 256 \\
        --out runs/quickstart/store/chat          # heldout.jsonl into chat-heldout likewise
    python -m jaxtrain.sft --config=configs/sft/tiny.py --workdir=runs/quickstart/sft

Hardware: a laptop; about a minute on 2 CPU cores. The rate is a tenth of pre-training's. The
tokenizer must have room for the template's tokens (`tokenize train --num_reserved=8`).
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

    c.init["from"] = "runs/quickstart/pretrain"
    c.init.load = "params"

    c.data.sources = {"chat": {"path": "runs/quickstart/store/chat"}}
    c.data.eval_sources = {"heldout": {"path": "runs/quickstart/store/chat-heldout"}}
    c.data.batch_size = 8
    c.data.seq_len = 256
    c.data.packing = "best_fit"

    c.optim.lr = 2e-4
    c.optim.schedule = "cosine"
    c.optim.warmup_steps = 5

    c.loop.num_steps = 100
    c.loop.log_every = 10
    c.checkpoint.save_every = 50
    return c
