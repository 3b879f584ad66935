"""Pre-training: next-token (or masked-LM) cross-entropy on a mixture of token stores.

The loss is summed over target tokens and divided once by their global weight; batch n is a pure
function of (config, seed, n). A second start with the same workdir resumes exactly. Ctrl-C and
SIGTERM save and stop (exit codes 130 and 143).

    python -m jaxtrain.pretrain --config=configs/pretrain/tiny.py --workdir=DIR \\
        [--config.loop.num_steps=50 …]
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
    source = stage.open_source(config)
    heldout = open_heldout(config.data, config.loop.seed)
    stage_checks.check_documents(source, heldout)
    stage.train(config, options.workdir, cross_entropy(config.loss), source, heldout)


if __name__ == "__main__":
    launch.run(main)
