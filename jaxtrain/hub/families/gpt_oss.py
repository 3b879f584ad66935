"""GPT-OSS (arXiv 2508.10925): experts with biases, attention sinks, every other layer local.

The published files hold the experts in MXFP4, which is not read; see `_QUANTISED` in
`hub/family.py` for what to do.
"""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import decoder
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import read_rope
from jaxtrain.hub.weights import Part, Weight
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.layers import CLAMP_ALPHA, CLAMP_LIMIT

_DEFAULT_BASE = 150_000.0
_DEFAULT_WINDOW, _DEFAULT_HEAD_DIM = 128, 64
_FULL_EVERY = 2  # where the file has no `layer_types`


def _to_config(fields: Fields) -> Mapping[str, Any]:
    sizes = decoder.read_sizes(fields, eps=1e-5, num_kv_heads=8)
    sizes["head_dim"] = fields.integer("head_dim", _DEFAULT_HEAD_DIM)
    decoder.ignore_router_losses(fields)
    fields.only("swiglu_alpha", CLAMP_ALPHA, why="the feed-forward is made for this")
    fields.only("swiglu_limit", CLAMP_LIMIT, why="the feed-forward is made for this")
    fields.without_effect("initial_context_length")  # a copy
    chosen = fields.integer("num_experts_per_tok", 4)
    fields.only("experts_per_token", chosen, why="it repeats num_experts_per_tok")
    if not fields.values.get("rope_scaling") and not fields.values.get("rope_parameters"):
        fields.problems.append("rope_scaling is missing; this family is made with yarn")
    decoder.read_silu(fields)  # what the file calls it
    kinds = {True: "full_attention", False: "sliding_attention"}
    types = [kinds[(i + 1) % _FULL_EVERY == 0] for i in range(sizes["num_layers"])]
    default = None if "sliding_window" in fields.values else _DEFAULT_WINDOW
    window = fields.integer("sliding_window", default)
    return {
        **sizes,
        **read_rope(fields, sizes["head_dim"], base=_DEFAULT_BASE),
        **decoder.read_windows(fields, window, types, sizes["num_layers"]),
        "activation": "clamped_swiglu",
        "attention_bias": "all" if fields.flag("attention_bias", True) else "none",
        "attention_sinks": True,
        "ffn_bias": True,
        "num_experts": decoder.read_num_experts(fields, "num_local_experts", "num_experts"),
        "num_experts_per_token": chosen,
        "router_bias": True,
    }


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    return {
        **decoder.write_sizes(config),
        "intermediate_size": config.expert_dim,
        "hidden_act": "silu",
        "attention_bias": config.attention_bias != "none",
        "sliding_window": config.window,
        "layer_types": decoder.write_layer_types(config),
        "num_local_experts": config.num_experts,
        "num_experts_per_tok": config.num_experts_per_token,
        "swiglu_limit": CLAMP_LIMIT,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    of, ours = f"{decoder.BLOCKS.theirs}mlp.", f"{decoder.BLOCKS.ours}ffn."
    return [
        *decoder.ends(config),
        *decoder.PRE_NORMS,
        *decoder.attention(config),
        Weight("model.layers.{L}.self_attn.sinks", "N", "blocks.attention.sink_N"),
        Weight(f"{of}router.weight", "E D", f"{ours}router.w_DE"),
        Weight(f"{of}router.bias", "E", f"{ours}router.b_E"),
        Weight(
            f"{of}experts.gate_up_proj",
            "E D (F *)",
            Part(f"{ours}w_gate_EDF", "1"),
            Part(f"{ours}w_up_EDF", "1"),
        ),
        Weight(
            f"{of}experts.gate_up_proj_bias",
            "E (F *)",
            Part(f"{ours}b_gate_EF", "1"),
            Part(f"{ours}b_up_EF", "1"),
        ),
        Weight(f"{of}experts.down_proj", "E F D", f"{ours}w_down_EFD"),
        Weight(f"{of}experts.down_proj_bias", "E D", f"{ours}b_down_ED"),
    ]


FAMILY = Family("gpt_oss", "GptOssForCausalLM", _to_config, _to_hf, _weights)
