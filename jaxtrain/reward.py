"""Reward models: a language model with a score for a head learns which answers are better.

The very step of pre-training, with the loss of an order of answers: pairs (Bradley–Terry), ranked
lists (Plackett–Luce), or verdicts on the steps of an answer (process rewards), whichever the token
stores hold (`python -m jaxtrain.tokenize answers`). An answer's score is that of its last token,
wherever it stands, so that no padding, packing or batch changes it. The model starts from a
language model, of which all is taken but the head. A second start with the same workdir resumes.

    python -m jaxtrain.reward --config=configs/reward/tiny.py --workdir=DIR \\
        --config.init.from=WORKDIR|HF_DIR [--config.loss.centring=0.01 …]

Its scores of other answers, of rows with a prompt and an answer, a pair or the steps of an answer,
through the same chat template:

    python -m jaxtrain.reward --score in.jsonl out.jsonl --workdir=DIR      (or --model=HF_DIR)
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import argparse
import pathlib
import sys

from jaxtrain import launch, reward_scores, stage, stage_checks
from jaxtrain.data.heldout import open_heldout
from jaxtrain.losses.reward import reward
from jaxtrain.run_config import RewardRun
from jaxtrain.serving import arguments

#: Kinds of stores, and what the loss of each is a mean over.
_UNITS = {"pairs": "pair", "ranks": "list", "steps": "step"}


def main() -> None:
    """Runs the command line."""
    if "--score" in sys.argv[1:]:
        return score()
    config, options = launch.parse(RewardRun, launch.training_parser(__doc__))
    stage_checks.check_starts_from_model(config)
    source = stage.open_source(config)
    heldout = open_heldout(config.data, config.loop.seed)
    stage_checks.check_answers(source, heldout, tuple(_UNITS), "a reward model")
    loss = reward(config.loss, source.answers or "")
    unit = _UNITS[source.answers or ""]
    stage.train(config, options.workdir, loss, source, heldout, unit=unit)


def score() -> None:
    """Scores a file of answers."""
    options = _score_arguments().parse_args()
    given, out = options.score
    model = arguments.load(options)
    num_rows, num_bad = reward_scores.score_file(
        model, given, pathlib.Path(out), options.max_len, options.step_separator
    )
    print(f"{out}: {num_rows:,} rows scored by {model.name}, {num_bad:,} of them without a score")


def _score_arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    parser.add_argument("--score", nargs=2, required=True, metavar=("IN", "OUT"))
    reward_scores.add_step_separator(parser)
    arguments.add_model(parser)
    return parser


if __name__ == "__main__":
    launch.run(main)
