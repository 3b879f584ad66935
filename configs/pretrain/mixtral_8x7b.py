"""Mixtral 8x7B (46.7B parameters, 12.9B active): the published shape.

    python -m jaxtrain.pretrain --config=configs/pretrain/mixtral_8x7b.py --workdir=DIR \
        --config.data.sources.web.path=STORE --config.data.eval_sources.heldout.path=STORE

Hardware: 64 × 80 GB GPUs; not run, compiled for them: 11 GB of state and 21 GB of temporaries
each. Source: arXiv 2401.04088, table 1; RoPE's base and the balance weight (as ours counts it, see
docs/moe.md) are those of the published model's config, whose context of 32,768 is longer than the
rows here. No token is dropped. Data, batch size and learning rate are not published: those of a
dense model of the active size.
"""

from jaxtrain import config
from jaxtrain.run_config import RunConfig


def get_config():
    c = config.to_config_dict(RunConfig)
    c.model.vocab_size = 32_000
    c.model.num_layers = 32
    c.model.d_model = 4096
    c.model.num_heads = 32
    c.model.num_kv_heads = 8
    c.model.head_dim = 128
    c.model.d_ff = 14_336
    c.model.rope_base = 1_000_000.0
    c.model.num_experts = 8
    c.model.num_experts_per_token = 2
    c.model.router_balance_weight = 0.02
    c.model.expert_dispatch = "dropless"
    c.model.remat = "full"
    c.loss.chunk_tokens = 2048

    c.data.sources = {"web": {"path": "stores/web"}}
    c.data.eval_sources = {"heldout": {"path": "stores/heldout"}}
    c.data.batch_size = 512
    c.data.seq_len = 8192
    c.data.packing = "concat"

    c.optim.lr = 3e-4
    c.optim.schedule = "cosine"
    c.optim.warmup_steps = 2_000
    c.optim.final_lr_frac = 0.1

    c.mesh.data = 0
    c.mesh.fsdp = 8
    c.mesh.expert = 8
    c.loop.num_steps = 500_000
    c.loop.num_microbatches = 8
    c.loop.eval_every = 2_000
    c.checkpoint.save_every = 1_000
    return c
