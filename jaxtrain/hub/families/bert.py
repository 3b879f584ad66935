"""BERT (arXiv 1810.04805) with its masked-LM head.

The head of next-sentence prediction and the pooler, which checkpoints of pre-training have besides,
take no part in it and are not read. Every token is of the first type: one text, no pairs.
"""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.weights import Weight
from jaxtrain.models.config import ModelConfig

_DEFAULT_EPS, _DEFAULT_DROPOUT = 1e-12, 0.1
#: What files of the first BERTs say of a pooler, in vain: it is as wide as the model.
_POOLER = ("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers")
_POOLER += ("pooler_size_per_head", "pooler_type")
_OF, _OURS = "bert.encoder.layer.{L}.", "blocks."
_EMBEDDINGS, _HEAD = "bert.embeddings.", "cls.predictions."


def _to_config(fields: Fields) -> Mapping[str, Any]:
    heads, width = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    if width % heads or width // heads % 2:
        fields.problems.append(
            f"hidden_size={width} must be an even multiple of num_attention_heads={heads}"
        )
    positions = fields.integer("max_position_embeddings", 512)
    fields.only("hidden_act", "gelu", why="the feed-forward of this family has exact GELU")
    fields.only("is_decoder", False, why="only encoders are read")
    fields.only("position_embedding_type", "absolute", why="there are no others")
    fields.without_effect("gradient_checkpointing", "classifier_dropout")
    fields.without_effect("directionality", *_POOLER)
    # Attention weights have no dropout here; what the model computes does not depend on it.
    fields.without_effect("attention_probs_dropout_prob")
    return {
        "vocab_size": fields.integer("vocab_size"),
        "num_layers": fields.integer("num_hidden_layers"),
        "d_model": width,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": max(2, width // heads // 2 * 2),
        "d_ff": fields.integer("intermediate_size"),
        "context_len": positions,
        "num_positions": positions,
        "num_token_types": fields.integer("type_vocab_size", 2),
        "tied_head": fields.flag("tie_word_embeddings", True),
        "norm": "layer",
        "norm_eps": fields.number("layer_norm_eps", _DEFAULT_EPS),
        "norm_placement": "residual",
        "activation": "gelu",
        "attention_bias": "all",
        "ffn_bias": True,
        "bidirectional": True,
        "masked_lm_head": True,
        "dropout": fields.number("hidden_dropout_prob", _DEFAULT_DROPOUT),
    }


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.d_ff,
        "max_position_embeddings": config.num_positions,
        "type_vocab_size": config.num_token_types,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout,
        "tie_word_embeddings": config.tied_head,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    table = [
        Weight(f"{_EMBEDDINGS}word_embeddings.weight", "V D", "embedding_VD"),
        Weight(f"{_EMBEDDINGS}position_embeddings.weight", "T D", "positions.position_TD"),
        Weight(f"{_EMBEDDINGS}token_type_embeddings.weight", "A D", "positions.type_AD"),
        *_norm(f"{_EMBEDDINGS}LayerNorm", "positions.norm"),
        *_norm(f"{_OF}attention.output.LayerNorm", f"{_OURS}attention_post_norm"),
        *_norm(f"{_OF}output.LayerNorm", f"{_OURS}ffn_post_norm"),
        Weight(f"{_HEAD}transform.dense.weight", "F D", "masked_lm.w_DF"),
        Weight(f"{_HEAD}transform.dense.bias", "F", "masked_lm.b_F"),
        *_norm(f"{_HEAD}transform.LayerNorm", "masked_lm.norm", "F"),
        Weight(f"{_HEAD}bias", "V", "masked_lm.b_V"),
    ]
    for name, letter, heads in (("query", "q", "N"), ("key", "k", "K"), ("value", "v", "K")):
        of, ours = f"{_OF}attention.self.{name}", f"{_OURS}attention."
        table += [
            Weight(f"{of}.weight", f"({heads} H) D", f"{ours}w_{letter}_D{heads}H"),
            Weight(f"{of}.bias", f"({heads} H)", f"{ours}b_{letter}_{heads}H"),
        ]
    table += [
        Weight(f"{_OF}attention.output.dense.weight", "D (N H)", f"{_OURS}attention.w_o_NHD"),
        Weight(f"{_OF}attention.output.dense.bias", "D", f"{_OURS}attention.b_o_D"),
        Weight(f"{_OF}intermediate.dense.weight", "F D", f"{_OURS}ffn.w_up_DF"),
        Weight(f"{_OF}intermediate.dense.bias", "F", f"{_OURS}ffn.b_up_F"),
        Weight(f"{_OF}output.dense.weight", "D F", f"{_OURS}ffn.w_down_FD"),
        Weight(f"{_OF}output.dense.bias", "D", f"{_OURS}ffn.b_down_D"),
    ]
    head = Weight(f"{_HEAD}decoder.weight", "V D", "w_head_DV")
    return table if config.tied_head else [*table, head]


def _norm(theirs: str, ours: str, letter: str = "D") -> list[Weight]:
    return [
        Weight(f"{theirs}.weight", letter, f"{ours}.scale"),
        Weight(f"{theirs}.bias", letter, f"{ours}.bias"),
    ]


FAMILY = Family(
    "bert",
    "BertForMaskedLM",
    _to_config,
    _to_hf,
    _weights,
    is_encoder=True,
    # `decoder.bias` is the same parameter as `bias` in `transformers`.
    ignored=("bert.embeddings.position_ids", "bert.pooler.*", "cls.seq_relationship.*"),
    tied_copy=("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
)
