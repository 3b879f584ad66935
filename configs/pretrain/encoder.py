"""A small bidirectional encoder trained by masked-LM through the same step as every decoder.

    python -m jaxtrain.pretrain --config=configs/pretrain/encoder.py --workdir=runs/encoder

Hardware: a laptop. Masks as in BERT (Devlin et al. 2019): 15 % of tokens chosen; of these 80 %
masked, 10 % random, 10 % kept. Uses the stores of scripts/quickstart.sh.
"""

from jaxtrain import config
from jaxtrain.run_config import RunConfig


def get_config():
    c = config.to_config_dict(RunConfig)
    c.model.vocab_size = 4096
    c.model.num_layers = 4
    c.model.d_model = 256
    c.model.num_heads = 8
    c.model.num_kv_heads = 8
    c.model.head_dim = 32
    c.model.d_ff = 704
    c.model.activation = "geglu"
    c.model.bidirectional = True
    c.model.tied_head = True
    c.precision.recipe = "float32"

    c.data.sources = {"stdlib": {"path": "runs/quickstart/store/train"}}
    c.data.eval_sources = {"heldout": {"path": "runs/quickstart/store/heldout"}}
    c.data.batch_size = 8
    c.data.seq_len = 256
    c.data.packing = "best_fit"
    c.data.objective = "masked_lm"

    c.optim.lr = 1e-3
    c.optim.warmup_steps = 50

    c.loop.num_steps = 500
    c.loop.eval_every = 250
    c.checkpoint.save_every = 250
    return c
