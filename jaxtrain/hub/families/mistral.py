"""Mistral (arXiv 2310.06825): Llama with a sliding window in every layer and no biases."""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import decoder
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import read_rope
from jaxtrain.hub.weights import Weight
from jaxtrain.models.config import ModelConfig

_DEFAULT_WINDOW = 4096  # where the file has no `sliding_window`; null is none


def _to_config(fields: Fields) -> Mapping[str, Any]:
    sizes = decoder.read_sizes(fields, num_kv_heads=8)
    default = None if "sliding_window" in fields.values else _DEFAULT_WINDOW
    return {
        **sizes,
        **read_rope(fields, sizes["head_dim"]),
        **decoder.read_silu(fields),
        "window": fields.integer("sliding_window", default),
    }


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    return {
        **decoder.write_sizes(config),
        "hidden_act": "silu",
        "sliding_window": config.window,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    return [
        *decoder.ends(config),
        *decoder.PRE_NORMS,
        *decoder.attention(config),
        *decoder.ffn(config),
    ]


FAMILY = Family("mistral", "MistralForCausalLM", _to_config, _to_hf, _weights)
