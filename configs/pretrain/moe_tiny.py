"""A mixture of 16 experts with 13M parameters, 5M of them active, on the quickstart's data.

    python -m jaxtrain.pretrain --config=configs/pretrain/moe_tiny.py --workdir=DIR

Hardware: a laptop. The stores are made by scripts/quickstart.sh. Balanced as DeepSeek-V3 is: a
selection bias that moves with the loads, and a balance loss of rows that is too small to be more
than a guard.
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
    c.model.num_experts = 16
    c.model.num_experts_per_token = 2
    c.model.d_ff_expert = 240
    c.model.num_shared_experts = 1
    c.model.num_dense_layers = 1
    c.model.router_scores = "sigmoid"
    c.model.router_selection_bias = True
    c.model.router_bias_rate = 0.001
    c.model.router_balance_weight = 1e-4
    c.model.expert_dispatch = "dropless"
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
