"""A reward model out of any language model: of a workdir of ours, or a Hugging Face directory.

    python -m jaxtrain.tokenize answers --input pairs.jsonl --tokenizer MODEL --max_len 2048 \\
        --too_long left --out runs/store/pairs
    python -m jaxtrain.reward --config=configs/reward/pairs.py:MODEL --workdir=runs/reward

The model's shape is read from MODEL; the path is everything behind the colon. Add
`--config.lora.rank=16` to train updates of low rank, and the new head, with a rate ten times as
high. Hardware: whatever holds the model, see `config.mesh`. The loss starts near ln 2 = 0.6931; one
epoch is usually enough, and more make the model too sure (metrics confidence and accuracy part).
Pairs held out: `--config.data.eval_sources.heldout.path=STORE`.
"""

from jaxtrain import config
from jaxtrain.run_config import RewardRun
from jaxtrain.stored_weights import named


def get_config(model=""):
    if not model:
        raise ValueError("name the model behind a colon: --config=configs/reward/pairs.py:MODEL")
    c = config.to_config_dict(RewardRun)
    shape = named(model).config
    config.assign(c.model, shape)
    c.model.context_len = shape.context_len or 2048
    c.model.scalar_head = True
    c.model.num_mtp_layers = 0
    c.init["from"] = model
    c.init.load = "params"

    c.data.sources = {"pairs": {"path": "runs/store/pairs"}}
    c.data.batch_size = 16
    c.data.seq_len = min(2 * c.model.context_len, 4096)  # a pair stands in one row
    c.data.packing = "best_fit"

    c.optim.lr = 9e-6
    c.optim.schedule = "cosine"
    c.optim.warmup_steps = 30

    c.loop.num_steps = 500
    c.checkpoint.save_every = 100
    return c
