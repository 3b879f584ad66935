"""Qwen3 with experts (arXiv 2505.09388)."""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import decoder
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import read_rope
from jaxtrain.hub.weights import Weight
from jaxtrain.models.config import ModelConfig

_DEFAULT_WINDOW = 4096


def _to_config(fields: Fields) -> Mapping[str, Any]:
    sizes = decoder.read_sizes(fields, num_kv_heads=4)
    decoder.ignore_router_losses(fields)
    fields.only("decoder_sparse_step", 1, why="dense layers may only be the first ones")
    return {
        **sizes,
        **read_rope(fields, sizes["head_dim"]),
        **decoder.read_silu(fields),
        "window": _read_window(fields),
        "attention_bias": "all" if fields.flag("attention_bias", False) else "none",
        "qk_norm": "head",
        "num_experts": decoder.read_num_experts(fields, "num_experts", "num_local_experts"),
        "num_experts_per_token": fields.integer("num_experts_per_tok", 8),
        "d_ff_expert": fields.integer("moe_intermediate_size", 768),
        "num_dense_layers": _read_num_dense(fields),
        "router_normalize": fields.flag("norm_topk_prob", False),
    }


def _read_window(fields: Fields) -> int | None:
    """One for all layers: this family's code does not know `max_window_layers`."""
    window = fields.integer("sliding_window", _DEFAULT_WINDOW)
    if not fields.flag("use_sliding_window", False):
        fields.without_effect("max_window_layers")
        return None
    fields.only("max_window_layers", 0, why="the window holds in every layer of this family")
    return window


def _read_num_dense(fields: Fields) -> int:
    layers = list(fields.sequence("mlp_only_layers", ()))
    if layers != list(range(len(layers))):
        fields.problems.append(
            f"mlp_only_layers={layers} is not supported: dense layers may only be the first ones"
        )
    return len(layers)


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    return {
        **decoder.write_sizes(config),
        "hidden_act": "silu",
        "attention_bias": config.attention_bias != "none",
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.num_experts_per_token,
        "moe_intermediate_size": config.expert_dim,
        "mlp_only_layers": list(range(config.num_dense_layers)),
        "decoder_sparse_step": 1,
        "norm_topk_prob": config.router_normalize,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    table = decoder.ends(config)
    for name, stack in decoder.stacks(config).items():
        table += [*decoder.pre_norms(stack), *decoder.attention(config, stack)]
        if name == "dense_blocks":
            table += decoder.ffn(config, stack)
        else:
            table += decoder.experts("mlp.gate", decoder.EXPERT, stack)
    return table


FAMILY = Family("qwen3_moe", "Qwen3MoeForCausalLM", _to_config, _to_hf, _weights)
