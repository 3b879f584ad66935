"""Llama 3.2 1B's shape (1,235,814,400 parameters) on 100 billion tokens.

    python -m jaxtrain.pretrain --config=configs/pretrain/1b.py --workdir=DIR \
        --config.data.sources.web.path=STORE --config.data.eval_sources.heldout.path=STORE

Hardware: 8 × 80 GB GPUs, about 80 hours at 40 % MFU (estimated, not run).
Shape: the published config of Llama 3.2 1B, at its pre-training context
of 8,192 tokens without the later RoPE scaling.
"""

from jaxtrain import config
from jaxtrain.run_config import RunConfig


def get_config():
    c = config.to_config_dict(RunConfig)
    c.model.vocab_size = 128_256
    c.model.num_layers = 16
    c.model.d_model = 2048
    c.model.num_heads = 32
    c.model.num_kv_heads = 8
    c.model.head_dim = 64
    c.model.d_ff = 8192
    c.model.tied_head = True
    c.model.rope_base = 500_000.0
    c.model.remat = "dots"

    c.model.attention_block = 512
    c.loss.chunk_tokens = 2048

    c.data.sources = {"web": {"path": "stores/web"}}
    c.data.eval_sources = {"heldout": {"path": "stores/heldout"}}
    c.data.batch_size = 128
    c.data.seq_len = 8192
    c.data.packing = "concat"

    c.optim.lr = 1e-3
    c.optim.schedule = "wsd"
    c.optim.warmup_steps = 2_000

    c.mesh.data = 1
    c.mesh.fsdp = 0
    c.loop.num_steps = 95_000
    c.loop.num_microbatches = 8
    c.loop.eval_every = 1_000
    c.checkpoint.save_every = 1_000
    return c
