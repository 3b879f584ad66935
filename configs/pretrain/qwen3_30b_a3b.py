"""Qwen3-30B-A3B (30.5B parameters, 3.3B active): the published shape.

    python -m jaxtrain.pretrain --config=configs/pretrain/qwen3_30b_a3b.py --workdir=DIR \
        --config.data.sources.web.path=STORE --config.data.eval_sources.heldout.path=STORE

Hardware: 64 × 80 GB GPUs; not run. Source: arXiv 2505.09388, table 2 and section 3.2 (experts are
balanced over the global batch; about 35T of its 36T tokens in rows of 4,096); RoPE's base and the
balance weight (as ours counts it, see docs/moe.md) are those of the published model's config: the
base was 10,000 until the rows grew longer. Batch size and learning rate are not published. Tokens
beyond 1.25 times an even load of a row are dropped: dropless fits the memory but sends 6.4 times as
much between devices (docs/moe.md).
"""

from jaxtrain import config
from jaxtrain.run_config import RunConfig


def get_config():
    c = config.to_config_dict(RunConfig)
    c.model.vocab_size = 151_936
    c.model.num_layers = 48
    c.model.d_model = 2048
    c.model.num_heads = 32
    c.model.num_kv_heads = 4
    c.model.head_dim = 128
    c.model.d_ff = 6144
    c.model.norm_eps = 1e-6
    c.model.qk_norm = "head"
    c.model.rope_base = 1_000_000.0
    c.model.num_experts = 128
    c.model.num_experts_per_token = 8
    c.model.d_ff_expert = 768
    c.model.router_balance_weight = 0.001
    c.model.router_balance_over = "batch"
    c.model.expert_dispatch = "capacity"
    c.model.remat = "full"
    c.loss.chunk_tokens = 2048

    c.data.sources = {"web": {"path": "stores/web"}}
    c.data.eval_sources = {"heldout": {"path": "stores/heldout"}}
    c.data.batch_size = 1024
    c.data.seq_len = 4096
    c.data.packing = "concat"

    c.optim.lr = 3e-4
    c.optim.schedule = "cosine"
    c.optim.warmup_steps = 2_000
    c.optim.final_lr_frac = 0.1

    c.mesh.data = 0
    c.mesh.fsdp = 8
    c.mesh.expert = 8
    c.loop.num_steps = 8_350_000
    c.loop.num_microbatches = 8
    c.loop.eval_every = 5_000
    c.checkpoint.save_every = 1_000
    return c
