"""OLMo 2 (arXiv 2501.00656): norms behind the sub-layers, queries and keys normed as a whole."""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import decoder
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import read_rope
from jaxtrain.hub.weights import Weight
from jaxtrain.models.config import ModelConfig


def _to_config(fields: Fields) -> Mapping[str, Any]:
    sizes = decoder.read_sizes(fields, eps=1e-5)
    return {
        **sizes,
        **read_rope(fields, sizes["head_dim"]),
        **decoder.read_silu(fields),
        "attention_bias": "all" if fields.flag("attention_bias", False) else "none",
        "norm_placement": "post",
        "qk_norm": "all",
    }


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    return {
        **decoder.write_sizes(config),
        "hidden_act": "silu",
        "attention_bias": config.attention_bias != "none",
    }


def _weights(config: ModelConfig) -> list[Weight]:
    post_norms = {
        "attention_post_norm": "post_attention_layernorm",
        "ffn_post_norm": "post_feedforward_layernorm",
    }
    return [
        *decoder.ends(config),
        *decoder.norms(post_norms),
        *decoder.attention(config),
        *decoder.ffn(config),
    ]


FAMILY = Family("olmo2", "Olmo2ForCausalLM", _to_config, _to_hf, _weights)
