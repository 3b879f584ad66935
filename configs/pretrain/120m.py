"""MobileLLM-125M's shape (124,635,456 parameters), Chinchilla-optimal on 2.5 billion tokens.

    python -m jaxtrain.pretrain --config=configs/pretrain/120m.py --workdir=DIR \
        --config.data.sources.web.path=STORE --config.data.eval_sources.heldout.path=STORE

Hardware: one 80 GB GPU, about 2 hours at 40 % MFU (estimated, not run).
Shape: MobileLLM-125M (Liu et al. 2024, arXiv 2402.14905): 30 layers, width 576,
9/3 heads, tied head, vocabulary 32,000. Tokens: 20 per parameter (Hoffmann et al. 2022).
"""

from jaxtrain import config
from jaxtrain.run_config import RunConfig


def get_config():
    c = config.to_config_dict(RunConfig)
    c.model.vocab_size = 32_000
    c.model.num_layers = 30
    c.model.d_model = 576
    c.model.num_heads = 9
    c.model.num_kv_heads = 3
    c.model.head_dim = 64
    c.model.d_ff = 1536
    c.model.tied_head = True

    c.model.attention_block = 512
    c.loss.chunk_tokens = 2048

    c.data.sources = {"web": {"path": "stores/web"}}
    c.data.eval_sources = {"heldout": {"path": "stores/heldout"}}
    c.data.batch_size = 128
    c.data.seq_len = 2048
    c.data.packing = "concat"

    c.optim.lr = 2e-3
    c.optim.schedule = "wsd"
    c.optim.warmup_steps = 500

    c.loop.num_steps = 9_500
    c.loop.num_microbatches = 8
    c.loop.eval_every = 500
    c.checkpoint.save_every = 500
    return c
