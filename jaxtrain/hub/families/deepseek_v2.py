"""DeepSeek-V2 (arXiv 2405.04434): latent attention, shared experts, dense first layers."""

import math
from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import decoder
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import context_len, mscale, read_rope, write_scaling
from jaxtrain.hub.weights import Part, Weight
from jaxtrain.models.config import ModelConfig

_LATENT_RANK, _QUERY_RANK = 512, 1536
_PLAIN_DIM, _ROPE_DIM, _VALUE_DIM = 128, 64, 128


def read_latent(fields: Fields) -> dict[str, Any]:
    """Sizes, latent attention, RoPE and feed-forward of DeepSeek-V2 and V3."""
    sizes = decoder.read_sizes(fields)
    rope_dim = fields.integer("qk_rope_head_dim", _ROPE_DIM)
    head_dim = fields.integer("qk_nope_head_dim", _PLAIN_DIM) + rope_dim
    # What `transformers` derives and writes.
    fields.only("head_dim", rope_dim, why="it repeats qk_rope_head_dim in this family")
    fields.only("qk_head_dim", head_dim, why="it is the sum of qk_nope_ and qk_rope_head_dim")
    fields.only("attention_bias", False, why="latent attention has no biases here")
    fields.only("moe_layer_freq", 1, why="dense layers may only be the first ones")
    decoder.ignore_router_losses(fields)
    no_query_latent = "q_lora_rank" in fields.values and fields.values["q_lora_rank"] is None
    rope = read_rope(fields, rope_dim)
    return {
        **sizes,
        **rope,
        **decoder.read_silu(fields),
        "head_dim": head_dim,
        "kv_latent_dim": fields.integer("kv_lora_rank", _LATENT_RANK),
        "q_latent_dim": fields.integer("q_lora_rank", None if no_query_latent else _QUERY_RANK),
        "rope_head_dim": rope_dim,
        "value_head_dim": fields.integer("v_head_dim", _VALUE_DIM),
        "attention_scale": _read_scale(fields, rope, head_dim),
    }


def read_experts(fields: Fields, *, num_dense: int, num_shared: int) -> dict[str, Any]:
    """Experts of DeepSeek-V2 and V3, given what holds where the file is silent."""
    num_experts = decoder.read_num_experts(fields, "n_routed_experts", "num_local_experts")
    return {
        "num_experts": num_experts,
        "num_experts_per_token": fields.integer("num_experts_per_tok"),
        "d_ff_expert": fields.integer("moe_intermediate_size"),
        "num_shared_experts": fields.integer("n_shared_experts", num_shared),
        "num_dense_layers": fields.integer("first_k_dense_replace", num_dense, least=0),
        "router_scale": fields.number("routed_scaling_factor", 1.0),
    }


def _read_scale(fields: Fields, rope: Mapping[str, Any], head_dim: int) -> float | None:
    """yarn's second term sharpens the scores, beside what it does to cosines and sines."""
    section = fields.values.get("rope_parameters") or fields.values.get("rope_scaling")
    all_dim = section.get("mscale_all_dim") if isinstance(section, Mapping) else None
    if not all_dim or not isinstance(all_dim, (int, float)) or rope.get("rope_scaling") != "yarn":
        return None
    return head_dim**-0.5 * mscale(rope["rope_factor"], all_dim) ** 2


def write_latent(config: ModelConfig) -> dict[str, Any]:
    """The fields that `read_latent` and `read_experts` read."""
    rope = {
        "rope_theta": config.rope_base,
        "rope_scaling": _write_scaling(config),
        "max_position_embeddings": context_len(config),
    }
    sizes = decoder.write_sizes(config, **rope)
    del sizes["head_dim"]  # means something else in this family
    return {
        **sizes,
        "hidden_act": "silu",
        "kv_lora_rank": config.kv_latent_dim,
        "q_lora_rank": config.q_latent_dim,
        "qk_rope_head_dim": config.rope_dim,
        "qk_nope_head_dim": config.head_dim - config.rope_dim,
        "v_head_dim": config.value_dim,
        "n_routed_experts": config.num_experts,
        "num_experts_per_tok": config.num_experts_per_token,
        "moe_intermediate_size": config.expert_dim,
        "n_shared_experts": config.num_shared_experts,
        "first_k_dense_replace": config.num_dense_layers,
        "moe_layer_freq": 1,
        "routed_scaling_factor": config.router_scale,
        "n_group": config.num_router_groups,
        "topk_group": config.num_router_groups_per_token,
    }


def _write_scaling(config: ModelConfig) -> Mapping[str, Any] | None:
    """`mscale_all_dim` stands for the attention scale, `mscale` with it for the RoPE's factor."""
    scaling = write_scaling(config)
    if scaling is None or config.rope_scaling != "yarn" or config.rope_factor <= 1:
        return scaling
    scaling, log = dict(scaling), 0.1 * math.log(config.rope_factor)
    if config.attention_scale is not None:
        sharper = math.sqrt(config.attention_scale * math.sqrt(config.head_dim))
        scaling["mscale_all_dim"] = _short((sharper - 1) / log)
        if config.rope_attention_factor is not None:
            scaling["mscale"] = _short((config.rope_attention_factor * sharper - 1) / log)
            del scaling["attention_factor"]
    return scaling


def _short(number: float) -> float:
    """As it was written in the file that it was computed from."""
    return round(number, 9)


def latent_attention(config: ModelConfig, stack: decoder.Stack) -> list[Weight]:
    """Projections and norms of latent attention."""
    of, ours = f"{stack.theirs}self_attn.", f"{stack.ours}attention."
    if config.q_latent_dim is None:
        table = [Weight(f"{of}q_proj.weight", "(N H) D", f"{ours}w_q_DNH")]
    else:
        table = [
            Weight(f"{of}q_a_proj.weight", "R D", f"{ours}w_q_down_DR"),
            Weight(f"{of}q_a_layernorm.weight", "R", f"{ours}q_norm.scale"),
            Weight(f"{of}q_b_proj.weight", "(N H) R", f"{ours}w_q_up_RNH"),
        ]
    return [
        *table,
        Weight(
            f"{of}kv_a_proj_with_mqa.weight",
            "* D",
            Part(f"{ours}w_down_DR", "R"),
            Part(f"{ours}w_k_rope_DH", "H"),
        ),
        Weight(f"{of}kv_a_layernorm.weight", "R", f"{ours}norm.scale"),
        Weight(
            f"{of}kv_b_proj.weight",
            "(N *) R",
            Part(f"{ours}w_k_up_RNH", "H"),
            Part(f"{ours}w_v_up_RNH", "H"),
        ),
        Weight(f"{of}o_proj.weight", "D (N H)", f"{ours}w_o_NHD"),
    ]


def blocks(config: ModelConfig) -> list[Weight]:
    """The blocks of DeepSeek-V2 and V3, dense ones first."""
    table = []
    for name, stack in decoder.stacks(config).items():
        table += [*decoder.pre_norms(stack), *latent_attention(config, stack)]
        table += decoder.ffn(config, stack) if name == "dense_blocks" else experts(config, stack)
    return table


def experts(config: ModelConfig, stack: decoder.Stack) -> list[Weight]:
    """Router, routed and shared experts."""
    shared = "mlp.shared_experts" if config.num_shared_experts else None
    table = decoder.experts("mlp.gate", decoder.EXPERT, stack, shared)
    if config.router_selection_bias:
        theirs = f"{stack.theirs}mlp.gate.e_score_correction_bias"
        ours = f"{stack.ours}ffn.router.selection_bias_E"
        table.append(Weight(theirs, "E", ours, in_float32=True))
    return table


def _to_config(fields: Fields) -> Mapping[str, Any]:
    fields.only("rope_interleave", True, why="this family turns neighbouring dimensions")
    fields.only("mlp_bias", False, why="the feed-forward of this family has no biases here")
    fields.only("scoring_func", "softmax", why="this family has no other")
    fields.only("norm_topk_prob", False, why="the published code and `transformers` disagree on it")
    fields.only("num_nextn_predict_layers", 0, why="this family predicts one token")
    method, groups = fields.text("topk_method", "greedy"), {}
    in_file = {
        "num_router_groups": fields.integer("n_group", 1),
        "num_router_groups_per_token": fields.integer("topk_group", 1),
    }
    if method == "group_limited_greedy":
        groups = in_file
    elif method != "greedy":
        fields.problems.append(
            f"topk_method={method!r} must be greedy or group_limited_greedy in this family"
        )
    return {
        **read_latent(fields),
        **read_experts(fields, num_dense=0, num_shared=2),
        **groups,
        "rope_interleaved": True,
        "router_normalize": False,
    }


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    is_grouped = config.num_router_groups > 1
    return {
        **write_latent(config),
        "topk_method": "group_limited_greedy" if is_grouped else "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    return [*decoder.ends(config), *blocks(config)]


FAMILY = Family("deepseek_v2", "DeepseekV2ForCausalLM", _to_config, _to_hf, _weights)
