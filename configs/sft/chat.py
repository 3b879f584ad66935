"""Fine-tuning of any model on conversations: of a workdir of ours, or a Hugging Face directory.

    python -m jaxtrain.tokenize chat --input chats.jsonl --tokenizer MODEL --max_len 2048 \\
        --too_long left --out runs/store/chat
    python -m jaxtrain.sft --config=configs/sft/chat.py:MODEL --workdir=runs/sft \\
        --config.loop.num_steps=1000

The model's shape is read from MODEL; the path is everything behind the colon. Add
`--config.lora.rank=16` to train updates of low rank, with a rate ten times as high.
Hardware: whatever holds the model, see `config.mesh`. Learning rate and batch are those that fit
models of 1 to 10 G parameters; watch the loss of rows held out
(`--config.data.eval_sources.heldout.path=STORE`), which rises after two or three epochs.
"""

from jaxtrain import config
from jaxtrain.run_config import RunConfig
from jaxtrain.stored_weights import named


def get_config(model=""):
    if not model:
        raise ValueError("name the model behind a colon: --config=configs/sft/chat.py:MODEL")
    c = config.to_config_dict(RunConfig)
    shape = named(model).config
    config.assign(c.model, shape)
    c.init["from"] = model
    c.init.load = "params"

    c.data.sources = {"chat": {"path": "runs/store/chat"}}
    c.data.batch_size = 32
    c.data.seq_len = min(shape.context_len or 2048, 2048)
    c.data.packing = "best_fit"

    c.optim.lr = 1e-5
    c.optim.schedule = "cosine"
    c.optim.warmup_steps = 30

    c.loop.num_steps = 1000
    c.checkpoint.save_every = 200
    return c
