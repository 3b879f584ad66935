"""Mixtral (arXiv 2401.04088): Mistral with experts, the two best of each token."""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import decoder
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import read_rope
from jaxtrain.hub.weights import Weight
from jaxtrain.models.config import ModelConfig

_DEFAULT_BASE = 1e6
_EXPERT = tuple(f"block_sparse_moe.experts.{{E}}.{name}" for name in ("w1", "w3", "w2"))


def _to_config(fields: Fields) -> Mapping[str, Any]:
    sizes = decoder.read_sizes(fields, eps=1e-5, num_kv_heads=8)
    decoder.ignore_router_losses(fields)
    fields.only("router_jitter_noise", 0, 0.0, why="router inputs have no noise here; set it to 0")
    return {
        **sizes,
        **read_rope(fields, sizes["head_dim"], base=_DEFAULT_BASE),
        **decoder.read_silu(fields),
        "window": fields.integer("sliding_window", None),
        "num_experts": decoder.read_num_experts(fields, "num_local_experts", "num_experts"),
        "num_experts_per_token": fields.integer("num_experts_per_tok", 2),
    }


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    return {
        **decoder.write_sizes(config),
        "intermediate_size": config.expert_dim,
        "hidden_act": "silu",
        "sliding_window": config.window,
        "num_local_experts": config.num_experts,
        "num_experts_per_tok": config.num_experts_per_token,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    return [
        *decoder.ends(config),
        *decoder.PRE_NORMS,
        *decoder.attention(config),
        *decoder.experts("block_sparse_moe.gate", _EXPERT),
    ]


FAMILY = Family("mixtral", "MixtralForCausalLM", _to_config, _to_hf, _weights)
