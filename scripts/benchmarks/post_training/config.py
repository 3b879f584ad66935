"""Config of every run of this benchmark: a stage, a model to start from, stores by their paths.

    --config=scripts/benchmarks/post_training/config.py:STAGE,MODEL,STORE[,STORE …]

Of each STORE, STORE-train is trained on and STORE-heldout measured on, under its last name. MODEL
is a workdir or a Hugging Face directory, of which shape and weights are taken; `student` is a new
model of 63,000 parameters with 512 ids. What differs from run to run comes as flags.
"""

import pathlib

from jaxtrain import config
from jaxtrain.run_config import STAGES
from jaxtrain.stored_weights import named


def get_config(argument: str):
    """The config of one run; see the module."""
    stage, model, *stores = argument.split(",")
    c = config.to_config_dict(STAGES[stage])
    if model == "student":
        c.model.vocab_size = 512
        c.model.num_layers = 4
        c.model.d_model = 32
        c.model.num_heads = 4
        c.model.num_kv_heads = 2
        c.model.head_dim = 8
        c.model.d_ff = 88
        c.model.tied_head = True
    else:
        config.assign(c.model, named(model).config)
        c.init["from"] = model
        c.init.load = "params"
    if stage == "reward":
        c.model.scalar_head = True
    c.precision.recipe = "float32"

    names = [pathlib.Path(store).name for store in stores]
    c.data.sources, c.data.eval_sources = (
        {name: {"path": f"{store}-{split}"} for name, store in zip(names, stores, strict=True)}
        for split in ("train", "heldout")
    )
    c.data.packing = "best_fit"
    c.optim.warmup_steps = 10
    c.checkpoint.save_every = 1_000_000  # at the end only
    return c
