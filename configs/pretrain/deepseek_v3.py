"""DeepSeek-V3 (671B parameters, 37B active): shape, balance and optimizer as published.

    python -m jaxtrain.pretrain --config=configs/pretrain/deepseek_v3.py --workdir=DIR \
        --config.data.sources.web.path=STORE --config.data.eval_sources.heldout.path=STORE

Hardware: 1,024 × 80 GB GPUs; not run. Source: arXiv 2412.19437, section 4.2: 14.8T tokens in rows
of 4,096, the batch that it reaches after 469B, a constant rate up to 10T and then a cosine. Four
things are other than published. The module that predicts a further token is left out:
`--config.model.num_mtp_layers=1 --config.model.mtp_weight_changes="((159_000, 0.1),)"` is theirs.
The rate falls over the last 4.8T tokens, theirs over 4.3T with 0.5T at a tenth and a thirtieth
behind; and there the bias goes on moving. Tokens beyond twice an even load of a row are dropped,
where the original drops none: a buffer with room for all would be 15 GB, and a layer has several.
"""

from jaxtrain import config
from jaxtrain.run_config import RunConfig


def get_config():
    c = config.to_config_dict(RunConfig)
    c.model.vocab_size = 129_280
    c.model.num_layers = 61
    c.model.d_model = 7168
    c.model.num_heads = 128
    c.model.num_kv_heads = 128
    c.model.head_dim = 192
    c.model.d_ff = 18_432
    c.model.norm_eps = 1e-6
    c.model.kv_latent_dim = 512
    c.model.q_latent_dim = 1536
    c.model.rope_head_dim = 64
    c.model.value_head_dim = 128
    c.model.rope_interleaved = True
    c.model.num_experts = 256
    c.model.num_experts_per_token = 8
    c.model.d_ff_expert = 2048
    c.model.num_shared_experts = 1
    c.model.num_dense_layers = 3
    c.model.num_router_groups = 8
    c.model.num_router_groups_per_token = 4
    c.model.router_scores = "sigmoid"
    c.model.router_scale = 2.5
    c.model.router_selection_bias = True
    c.model.router_bias_rate = 0.001
    c.model.router_balance_weight = 1e-4
    c.model.expert_dispatch = "capacity"
    c.model.expert_capacity_factor = 2.0
    c.model.remat = "full"
    c.loss.chunk_tokens = 2048

    c.data.sources = {"web": {"path": "stores/web"}}
    c.data.eval_sources = {"heldout": {"path": "stores/heldout"}}
    c.data.batch_size = 15_360
    c.data.seq_len = 4096
    c.data.packing = "concat"

    c.optim.lr = 2.2e-4
    c.optim.schedule = "wsd"
    c.optim.warmup_steps = 2_000
    c.optim.decay_tokens = 4_800_000_000_000
    c.optim.decay_shape = "cosine"
    c.optim.final_lr_frac = 0.1

    c.mesh.data = 0
    c.mesh.fsdp = 32
    c.mesh.expert = 32
    c.loop.num_steps = 235_000
    c.loop.num_microbatches = 15
    c.loop.eval_every = 2_000
    c.checkpoint.save_every = 500
    return c
