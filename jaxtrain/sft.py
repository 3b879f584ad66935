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


from jaxtrain import launch, stage, stage_checks
from jaxtrain.data.heldout import open_heldout
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.run_config import RunConfig


def main() -> None:
    """Runs the command line."""
    config, options = launch.parse(RunConfig, launch.training_parser(__doc__))
    stage_checks.check_starts_from_model(config)
    source = stage.open_source(config)
    heldout = open_heldout(config.data, config.loop.seed)
    stage_checks.check_conversations(source, heldout)
    stage.train(config, options.workdir, cross_entropy(config.loss), source, heldout)


if __name__ == "__main__":
    launch.run(main)
