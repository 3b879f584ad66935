"""Distillation: a student learns from the probabilities that a teacher gives the next token.

The very step of pre-training and fine-tuning on any of their stores, with a loss between two models
(config.loss: which divergence, at what temperature, beside how much cross-entropy). The teacher may
have another width, depth and precision, and must have the student's tokenizer, which is compared
token by token. It runs beside the student (config.teacher.runs=in_step), sharded as it likes, or
once over the data before training (ahead), when its likeliest ids are kept and it is let go.
The student starts from config.init.from, or anew. To learn from a teacher's text instead, let it
write rows (`jaxtrain.distill_text`) and fine-tune on them. A second start with the same workdir
resumes.

    python -m jaxtrain.distill --config=configs/distill/tiny.py --workdir=DIR \\
        --config.teacher.from=WORKDIR|HF_DIR [--config.loss.temperature=2 …]
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import dataclasses
import functools

from jaxtrain import launch, stage, stage_checks, teacher_cache
from jaxtrain.companions import Companion
from jaxtrain.data.heldout import open_heldout
from jaxtrain.losses.distill import distill
from jaxtrain.run_config import AHEAD, DistillRun

_NAME = "teacher"  # by which the loss asks for it


def main() -> None:
    """Runs the command line."""
    config, options = launch.parse(DistillRun, launch.training_parser(__doc__))
    teacher, loss = config.teacher, config.loss
    assert teacher.from_ is not None, "DistillRun"
    stage_checks.check_takes_parameters(config)
    source = stage.open_source(config)
    heldout = open_heldout(config.data, config.loop.seed)
    stage_checks.check_documents(source, heldout)
    num_shared = stage_checks.check_teacher_tokenizer(source, teacher.from_)
    if loss.hidden_weight:
        stage_checks.check_same_width(config, teacher.from_)
    prepare = stage.as_it_is
    if teacher.runs == AHEAD and loss.top_k is not None:  # together always, DistillRun
        stage_checks.check_listed(loss.top_k, num_shared)
        recipe = teacher.recipe or config.precision.recipe
        listing = teacher_cache.Listing(
            loss.top_k, loss.temperature, num_shared, loss.chunk_tokens, recipe
        )
        prepare = functools.partial(teacher_cache.run_ahead, _NAME, listing, options.workdir)
        loss = dataclasses.replace(loss, top_k=None)  # what is kept is all there is
    others = {_NAME: Companion(teacher.from_, teacher.recipe, teacher.sharding)}
    stage.train(
        config, options.workdir, distill(loss, num_shared), source, heldout, others, prepare
    )


if __name__ == "__main__":
    launch.run(main)
