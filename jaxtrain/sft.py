"""Supervised fine-tuning: next-token cross-entropy on what an assistant says in conversations.

The very step of pre-training: which tokens are trained stands in the token store, where the chat
template was last seen (`python -m jaxtrain.tokenize chat`), and comes with each batch as its loss
weights. The loss is their sum, divided once by their global number. Conversations are packed whole
and see nothing of each other. The run's workdir has tokenizer and chat template, so that
`generate --chat`, `serve` and `export` work on it. A second start with the same workdir resumes.

    python -m jaxtrain.sft --config=configs/sft/tiny.py --workdir=DIR \\
        --config.init.from=WORKDIR|HF_DIR [--config.loop.num_steps=50 …]
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import argparse

from jaxtrain import launch, stage
from jaxtrain.data.heldout import open_heldout
from jaxtrain.data.loader import Loader
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.run_config import RunConfig


def main() -> None:
    """Runs the command line."""
    config, options = launch.parse(RunConfig, _arguments())
    _check_start(config)
    source = stage.open_source(config)
    check_conversations(source)
    heldout = open_heldout(config.data, config.loop.seed)
    stage.train(config, options.workdir, cross_entropy(config.loss), source, heldout)


def _check_start(config: RunConfig) -> None:
    if config.init.from_ is None:
        raise ValueError(
            "config.init.from is not set; fine-tuning starts from a model: name a workdir, or the "
            "directory of a Hugging Face model"
        )
    if config.init.load != "params":
        raise ValueError(
            f"config.init.load={config.init.load} would go on with the schedule and the data of "
            "another stage; set config.init.load=params"
        )


def check_conversations(source: Loader) -> None:
    """Refuses stores without a mask alone, and stores of different templates together."""
    chats = {each.name: each.store for each in source.sources if each.store.has_mask}
    if not chats:
        raise ValueError(
            "config.data.sources holds no conversations, only plain text; make a store of them "
            "with python -m jaxtrain.tokenize chat, or use jaxtrain.pretrain"
        )
    templates = {
        name: store.tokenization.settings["chat_template_sha256"] for name, store in chats.items()
    }
    if len(set(filter(None, templates.values()))) > 1:
        each = ", ".join(f"{name} {str(template)[:12]}" for name, template in templates.items())
        raise ValueError(
            f"config.data.sources are written with different chat templates ({each}); make their "
            "stores with one"
        )


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    parser.add_argument(
        "--workdir", required=True, metavar="DIR", type=launch.directory, help="the run's directory"
    )
    return parser


if __name__ == "__main__":
    launch.run(main)
