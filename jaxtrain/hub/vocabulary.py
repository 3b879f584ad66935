"""Rows of embedding and head for tokens that a tokenizer has got since the model was trained."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

_EMBEDDING, _HEAD = "embedding_VD", "w_head_DV"
_ENCODER_HEAD, _BIAS = "masked_lm", "b_V"


def add_tokens(params: Mapping[str, Any], num_known: int, num_new: int) -> dict[str, Any]:
    """Parameters with rows for `num_new` tokens behind the `num_known` that there are.

    A new row of the embedding, of an untied head and of its bias is the mean of the known ones: the
    new token starts as an average one, whose logit never stands out (Hewitt 2021, "Initializing new
    word embeddings for pretrained language models"). No other row changes. Rows that a padded
    vocabulary has to spare are used first; only what is missing is added.
    """
    changed = dict(params)
    changed[_EMBEDDING] = _with_rows(params[_EMBEDDING], num_known, num_new)
    if _HEAD in params:
        changed[_HEAD] = _with_rows(params[_HEAD].T, num_known, num_new).T
    if _ENCODER_HEAD in params:
        bias_V = params[_ENCODER_HEAD][_BIAS]
        bias_V = _with_rows(bias_V[:, None], num_known, num_new)[:, 0]
        changed[_ENCODER_HEAD] = {**params[_ENCODER_HEAD], _BIAS: bias_V}
    return changed


def _with_rows(table: jax.Array, num_known: int, num_new: int) -> jax.Array:
    num_rows = max(table.shape[0], num_known + num_new)
    table = jnp.pad(table, ((0, num_rows - table.shape[0]), (0, 0)))
    mean = jnp.mean(table[:num_known], axis=0)
    return table.at[num_known : num_known + num_new].set(mean[None, :])
