"""The one contract between all parts: dimension letters, `Batch` and `LossSums`.

Nothing here imports jax, so that data workers and CPU clusters start without it; arrays may be
NumPy arrays (in `data/`) or jax arrays (from `train/` on).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Float, Int

Array = Any  # numpy.ndarray or jax.Array; jaxtyping checks dtype and shape of either

#: What each letter of an array's suffix and of a parameter's `axes` stands for.
LEGEND: Mapping[str, str] = {
    "B": "batch: global examples",
    "T": "query positions",
    "S": "key positions",
    "D": "model width",
    "N": "query heads",
    "K": "key/value heads; in a teacher's list, the ids it says something of",
    "G": "query heads per key/value head",
    "H": "head size",
    "F": "feed-forward width",
    "V": "vocabulary",
    "E": "experts",
    "C": "expert capacity",
    "L": "stacked layers",
    "M": "microbatches",
    "P": "pipeline stages",
    "R": "low-rank latent",
    "A": "token types of an encoder (sentences A and B)",
    "Q": "segments of a row, counted from the left",
}


class Batch(NamedTuple):
    """What one step trains on. Made where the text was last seen; nothing downstream guesses.

    `targets[b, t]` is what `inputs[b, t]` should predict and counts `loss_weights[b, t]` times;
    where the weight is 0 the target is arbitrary but in range. `segment_ids` number the documents
    of a row from 1 and are 0 on filler, which sees nothing and is seen by nothing. `positions`
    restart at 0 in each segment.
    """

    inputs: Int[Array, "B T"]
    targets: Int[Array, "B T"]
    loss_weights: Float[Array, "B T"]
    positions: Int[Array, "B T"]
    segment_ids: Int[Array, "B T"]


class AnswerBatch(NamedTuple):
    """Rows of whole answers, each behind its prompt, for losses that judge or compare answers.

    Segment q + 1 of a row's `tokens` is described by column q. Answers that belong together (a
    pair, a ranked list, the rows that share a KL estimate) stand side by side in one row, best
    first, and carry one group number; filler columns have group 0.
    """

    tokens: Batch
    group_ids: Int[Array, "B Q"]  # from 1 in each row
    values: Float[Array, "B Q"]  # what is known of an answer: margin, score or label; 0: nothing
    reference: Float[Array, "B Q"]  # nats: log-probability under a cached reference, else 0


class TeacherBatch(NamedTuple):
    """Rows with what a teacher said of each place's next token: its likeliest ids, stored.

    Log-probabilities are normalised over the whole vocabulary, at the temperature of the loss. One
    of -inf is no entry, and its id is arbitrary: where fewer than K are known, and on filler.
    """

    tokens: Batch
    teacher_ids: Int[Array, "B T K"]
    teacher_logprobs: Float[Array, "B T K"]  # nats


class LossSums(NamedTuple):
    """Sums over one microbatch. `train/step.py` adds them up and divides once, globally.

    Returning sums instead of means makes the mean of means unwritable.
    """

    loss_sum: Float[Array, ""]  # nats, summed over what weight_sum counts
    weight_sum: Float[Array, ""]  # target tokens, or pairs
    metric_sums: Mapping[str, tuple[Float[Array, ""], Float[Array, ""]]]  # name -> (sum, count)


#: loss(model, frozen, batch, rng): `frozen` maps names to frozen models (reference policy, teacher;
#: empty in pre-training); `rng` is a key of this microbatch alone, None where nothing is trained.
Loss = Callable[[Any, Mapping[str, Any], Any, Any], LossSums]
