"""Preference learning of any model: of a workdir of ours, or a Hugging Face directory.

    python -m jaxtrain.tokenize answers --input pairs.jsonl --tokenizer MODEL --max_len 2048 \\
        --too_long left --out runs/store/pairs
    python -m jaxtrain.dpo --config=configs/dpo/pairs.py:MODEL --workdir=runs/dpo

The model's shape is read from MODEL; the path is everything behind the colon. Add
`--config.lora.rank=16` to train updates of low rank, with a rate ten times as high; the reference
is then the model below them.
Hardware: whatever holds the model, see `config.mesh`. The loss starts at ln 2 = 0.6931 and the
margin at 0; the rate is a tenth of fine-tuning's, and one epoch is usually enough. Pairs held out:
`--config.data.eval_sources.heldout.path=STORE`.
"""

from jaxtrain import config
from jaxtrain.run_config import PreferenceRun
from jaxtrain.stored_weights import named


def get_config(model=""):
    if not model:
        raise ValueError("name the model behind a colon: --config=configs/dpo/pairs.py:MODEL")
    c = config.to_config_dict(PreferenceRun)
    shape = named(model).config
    config.assign(c.model, shape)
    c.model.context_len = shape.context_len or 2048
    c.init["from"] = model
    c.init.load = "params"

    c.data.sources = {"pairs": {"path": "runs/store/pairs"}}
    c.data.batch_size = 16
    c.data.seq_len = min(2 * c.model.context_len, 4096)  # a pair stands in one row
    c.data.packing = "best_fit"

    c.optim.lr = 5e-7
    c.optim.schedule = "cosine"
    c.optim.warmup_steps = 30

    c.loop.num_steps = 500
    c.checkpoint.save_every = 100
    return c
