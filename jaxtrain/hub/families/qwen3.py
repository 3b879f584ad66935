"""Qwen3, dense (arXiv 2505.09388): norms of query and key heads instead of biases."""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import decoder, qwen2
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import read_rope
from jaxtrain.hub.weights import Weight
from jaxtrain.models.config import ModelConfig

_DEFAULT_HEAD_DIM = 128


def _to_config(fields: Fields) -> Mapping[str, Any]:
    sizes = decoder.read_sizes(fields, num_kv_heads=32)
    sizes["head_dim"] = fields.integer("head_dim", _DEFAULT_HEAD_DIM)
    return {
        **sizes,
        **read_rope(fields, sizes["head_dim"]),
        **decoder.read_silu(fields),
        **qwen2.read_window(fields, sizes["num_layers"]),
        "attention_bias": "all" if fields.flag("attention_bias", False) else "none",
        "qk_norm": "head",
    }


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    return {
        **decoder.write_sizes(config),
        **qwen2.write_window(config),
        "hidden_act": "silu",
        "attention_bias": config.attention_bias != "none",
    }


def _weights(config: ModelConfig) -> list[Weight]:
    return [
        *decoder.ends(config),
        *decoder.PRE_NORMS,
        *decoder.attention(config),
        *decoder.ffn(config),
    ]


FAMILY = Family("qwen3", "Qwen3ForCausalLM", _to_config, _to_hf, _weights)
