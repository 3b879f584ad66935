"""Llama 3 8B (8,030,261,248 parameters): shape, learning rate and context as published.

    python -m jaxtrain.pretrain --config=configs/pretrain/llama3_8b.py --workdir=DIR \
        --config.data.sources.web.path=STORE --config.data.eval_sources.heldout.path=STORE

Hardware: 8 × 80 GB GPUs, about 180,000 GPU-hours at 40 % MFU (estimated, not run); on n times as
many GPUs divide num_microbatches by n.
Source: Llama 3, arXiv 2407.21783, table 3 and section 3.4
(the 8B's batch schedule is not published; 4M tokens as for the first phase of the 405B).
"""

from jaxtrain import config
from jaxtrain.run_config import RunConfig


def get_config():
    c = config.to_config_dict(RunConfig)
    c.model.vocab_size = 128_256
    c.model.num_layers = 32
    c.model.d_model = 4096
    c.model.num_heads = 32
    c.model.num_kv_heads = 8
    c.model.head_dim = 128
    c.model.d_ff = 14_336
    c.model.rope_base = 500_000.0
    c.model.remat = "full"

    c.model.attention_block = 512
    c.loss.chunk_tokens = 2048

    c.data.sources = {"web": {"path": "stores/web"}}
    c.data.eval_sources = {"heldout": {"path": "stores/heldout"}}
    c.data.batch_size = 512
    c.data.seq_len = 8192
    c.data.packing = "concat"

    c.optim.lr = 3e-4
    c.optim.schedule = "cosine"
    c.optim.warmup_steps = 8_000
    c.optim.final_lr_frac = 0.01

    c.mesh.data = 0
    c.mesh.fsdp = 8
    c.loop.num_steps = 1_200_000
    c.loop.num_microbatches = 64
    c.loop.eval_every = 2_000
    c.checkpoint.save_every = 1_000
    return c
