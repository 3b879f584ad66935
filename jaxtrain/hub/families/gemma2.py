"""Gemma 2 (arXiv 2408.00118): norms on both sides, soft caps, every other layer local."""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import decoder
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import read_rope
from jaxtrain.hub.weights import Weight
from jaxtrain.models.config import ModelConfig

_PERIOD = 2  # every second layer is global where the file has no `layer_types`
_DEFAULT_WINDOW = 4096
_DEFAULT_HEAD_DIM, _DEFAULT_QUERY_SCALAR = 256, 256
_DEFAULT_LOGIT_CAP, _DEFAULT_ATTENTION_CAP = 30.0, 50.0


def read_gemma(fields: Fields) -> dict[str, Any]:
    """What Gemma 2 and 3 have in common."""
    sizes = decoder.read_sizes(fields, tied=True, num_kv_heads=4)
    sizes["head_dim"] = fields.integer("head_dim", _DEFAULT_HEAD_DIM)
    scalar = fields.number("query_pre_attn_scalar", _DEFAULT_QUERY_SCALAR)
    if scalar <= 0:
        fields.problems.append(f"query_pre_attn_scalar={scalar} must be > 0")
        scalar = _DEFAULT_QUERY_SCALAR
    fields.only("use_bidirectional_attention", False, why="only causal models are read")
    return {
        **sizes,
        **decoder.read_gelu_tanh(fields),
        "scale_embedding": True,
        "norm_offset": True,
        "norm_placement": "both",
        "attention_bias": "all" if fields.flag("attention_bias", False) else "none",
        "attention_scale": scalar**-0.5,
    }


def read_period(fields: Fields, period: int, num_layers: int) -> dict[str, Any]:
    """Windows; every `period`-th layer is global where the file does not list them."""
    kinds = {True: "full_attention", False: "sliding_attention"}
    types = [kinds[(layer + 1) % period == 0] for layer in range(num_layers)]
    default = None if "sliding_window" in fields.values else _DEFAULT_WINDOW
    window = fields.integer("sliding_window", default)
    fields.only("sliding_window_size", window, why="it is the old name of sliding_window")
    return decoder.read_windows(fields, window, types, num_layers)


def write_gemma(config: ModelConfig, **rope: Any) -> dict[str, Any]:
    """What Gemma 2 and 3 have in common."""
    scale = config.attention_scale or config.head_dim**-0.5
    return {
        **decoder.write_sizes(config, **rope),
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": config.attention_bias != "none",
        "query_pre_attn_scalar": round(scale**-2) or 1,
        "sliding_window": config.window,
        "layer_types": decoder.write_layer_types(config),
        "final_logit_softcapping": config.logit_softcap,
        "attn_logit_softcapping": config.attention_softcap,
    }


def _to_config(fields: Fields) -> Mapping[str, Any]:
    gemma = read_gemma(fields)
    return {
        **gemma,
        **read_rope(fields, gemma["head_dim"]),
        **read_period(fields, _PERIOD, gemma["num_layers"]),
        "logit_softcap": fields.number("final_logit_softcapping", _DEFAULT_LOGIT_CAP, null=None),
        "attention_softcap": fields.number(
            "attn_logit_softcapping", _DEFAULT_ATTENTION_CAP, null=None
        ),
    }


def weights(config: ModelConfig) -> list[Weight]:
    """The table of Gemma 2 and 3."""
    norms = {
        "attention_norm": "input_layernorm",
        "attention_post_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "ffn_post_norm": "post_feedforward_layernorm",
    }
    return [
        *decoder.ends(config),
        *decoder.norms(norms),
        *decoder.attention(config),
        *decoder.ffn(config),
    ]


FAMILY = Family("gemma2", "Gemma2ForCausalLM", _to_config, write_gemma, weights)
