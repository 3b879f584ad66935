"""Preference learning: a model learns which of two answers is preferred (DPO and its kin, KTO).

The very step of pre-training: the loss compares log-probabilities of whole answers, the model's own
with those of a frozen reference, which is the model that the run starts from unless the config
names another. Data are token stores of answers (`python -m jaxtrain.tokenize answers`): pairs,
chosen and rejected, or single answers with a judgement (config.loss.kind=kto). By default the
reference runs once over all answers before training and is let go; what it said stays in the
workdir, by its content. Dropout is off in both. A second start with the same workdir resumes.

    python -m jaxtrain.dpo --config=configs/dpo/tiny.py --workdir=DIR \\
        --config.init.from=WORKDIR|HF_DIR [--config.loss.kind=ipo --config.loss.beta=0.1 …]
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import functools

from jaxtrain import launch, reference_cache, stage, stage_checks
from jaxtrain.companions import Companion
from jaxtrain.data.heldout import open_heldout
from jaxtrain.losses.preference import preference
from jaxtrain.run_config import AHEAD, PreferenceRun

_NAME = "reference"  # by which the loss asks for it


def main() -> None:
    """Runs the command line."""
    config, options = launch.parse(PreferenceRun, launch.training_parser(__doc__))
    stage_checks.check_starts_from_model(config)
    source = stage.open_source(config)
    heldout = open_heldout(config.data, config.loop.seed)
    stage_checks.check_answers(
        source, heldout, (config.loss.answers,), f"config.loss.kind={config.loss.kind}"
    )
    if config.reference.from_ is not None:
        stage_checks.check_reference_tokenizer(source, config.reference.from_)
    needs_reference = config.loss.needs_reference
    others = {_NAME: Companion(config.reference.from_)} if needs_reference else {}
    prepare = stage.as_it_is
    if needs_reference and config.reference.runs == AHEAD:
        chunk, recipe = config.loss.chunk_tokens, config.precision.recipe
        prepare = functools.partial(
            reference_cache.run_ahead, _NAME, chunk, recipe, options.workdir
        )
    loss = preference(config.loss)
    unit = "pair" if config.loss.answers == "pairs" else "answer"
    stage.train(config, options.workdir, loss, source, heldout, others, prepare, unit)


if __name__ == "__main__":
    launch.run(main)
