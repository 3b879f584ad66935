"""Llama 2 and 3.x, and the many models of the same form (arXiv 2307.09288, 2407.21783)."""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import decoder
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import read_rope
from jaxtrain.hub.weights import Weight
from jaxtrain.models.config import ModelConfig


def _to_config(fields: Fields) -> Mapping[str, Any]:
    sizes = decoder.read_sizes(fields)
    fields.without_effect("is_llama_config")  # SmolLM's
    fields.only("rope_interleaved", False, why="pairs lie in the two halves of a head here")
    return {
        **sizes,
        **read_rope(fields, sizes["head_dim"]),
        **decoder.read_silu(fields),
        "attention_bias": "all" if fields.flag("attention_bias", False) else "none",
        "ffn_bias": fields.flag("mlp_bias", False),
    }


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    return {
        **decoder.write_sizes(config),
        "hidden_act": "silu",
        "attention_bias": config.attention_bias != "none",
        "mlp_bias": config.ffn_bias,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    return [
        *decoder.ends(config),
        *decoder.PRE_NORMS,
        *decoder.attention(config),
        *decoder.ffn(config),
    ]


FAMILY = Family("llama", "LlamaForCausalLM", _to_config, _to_hf, _weights)
