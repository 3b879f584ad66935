"""Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): biases of queries, keys and values."""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import decoder
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import read_rope
from jaxtrain.hub.weights import Weight
from jaxtrain.models.config import ModelConfig

_DEFAULT_WINDOW, _DEFAULT_FULL_LAYERS = 4096, 28


def read_window(fields: Fields, num_layers: int) -> dict[str, Any]:
    """The first `max_window_layers` layers see everything, the others a window, if that is on."""
    is_on = fields.flag("use_sliding_window", False)
    window = fields.integer("sliding_window", _DEFAULT_WINDOW)
    num_full = fields.integer("max_window_layers", _DEFAULT_FULL_LAYERS, least=0)
    num_full = min(num_full, num_layers) if is_on else num_layers
    types = ["full_attention"] * num_full + ["sliding_attention"] * (num_layers - num_full)
    return decoder.read_windows(fields, window if is_on else None, types, num_layers)


def write_window(config: ModelConfig) -> dict[str, Any]:
    """The fields that `read_window` reads."""
    types = decoder.write_layer_types(config)
    sliding = [layer for layer, each in enumerate(types) if each == "sliding_attention"]
    return {
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
        "max_window_layers": sliding[0] if sliding else config.num_layers,
        "layer_types": types,
    }


def _to_config(fields: Fields) -> Mapping[str, Any]:
    fields.only("use_mrope", False, why="positions have one axis in a text model")
    sizes = decoder.read_sizes(fields, num_kv_heads=32)
    return {
        **sizes,
        **read_rope(fields, sizes["head_dim"]),
        **decoder.read_silu(fields),
        **read_window(fields, sizes["num_layers"]),
        "attention_bias": "qkv",
    }


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    return {**decoder.write_sizes(config), **write_window(config), "hidden_act": "silu"}


def _weights(config: ModelConfig) -> list[Weight]:
    return [
        *decoder.ends(config),
        *decoder.PRE_NORMS,
        *decoder.attention(config),
        *decoder.ffn(config),
    ]


FAMILY = Family("qwen2", "Qwen2ForCausalLM", _to_config, _to_hf, _weights)
