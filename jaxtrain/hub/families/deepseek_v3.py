"""DeepSeek-V3 and R1 (arXiv 2412.19437): V2 with sigmoid scores and a bias that balances load."""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import decoder, deepseek_v2
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.weights import Weight
from jaxtrain.models.config import ModelConfig

_DEFAULT_GROUPS, _DEFAULT_GROUPS_PER_TOKEN = 8, 4


def _to_config(fields: Fields) -> Mapping[str, Any]:
    fields.only("scoring_func", "sigmoid", why="this family has no other")
    fields.only("topk_method", "noaux_tc", why="this family has no other")
    return {
        **deepseek_v2.read_latent(fields),
        **deepseek_v2.read_experts(fields, num_dense=3, num_shared=1),
        "num_router_groups": fields.integer("n_group", _DEFAULT_GROUPS),
        "num_router_groups_per_token": fields.integer("topk_group", _DEFAULT_GROUPS_PER_TOKEN),
        "router_scale": fields.number("routed_scaling_factor", 2.5),
        "router_scores": "sigmoid",
        "router_normalize": fields.flag("norm_topk_prob", True),
        "router_selection_bias": True,
        "num_mtp_layers": fields.integer("num_nextn_predict_layers", 0, least=0),
        "rope_interleaved": fields.flag("rope_interleave", True),
    }


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    return {
        **deepseek_v2.write_latent(config),
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": config.router_normalize,
        "rope_interleave": config.rope_interleaved,
        "num_nextn_predict_layers": config.num_mtp_layers,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    table = [*decoder.ends(config), *deepseek_v2.blocks(config)]
    return [*table, *_further_tokens(config)] if config.num_mtp_layers else table


def _further_tokens(config: ModelConfig) -> list[Weight]:
    """The modules of multi-token prediction, as layers behind the last one."""
    of, ours = f"model.layers.{{L+{config.num_layers}}}.", "mtp."
    stack = decoder.Stack(of, f"{ours}block.")
    return [
        Weight(f"{of}enorm.weight", "D", f"{ours}embedding_norm.scale"),
        Weight(f"{of}hnorm.weight", "D", f"{ours}hidden_norm.scale"),
        Weight(f"{of}eh_proj.weight", "D R", f"{ours}w_join_RD"),
        Weight(f"{of}shared_head.norm.weight", "D", f"{ours}final_norm.scale"),
        *decoder.pre_norms(stack),
        *deepseek_v2.latent_attention(config, stack),
        *deepseek_v2.experts(config, stack),
    ]


def _copies(config: ModelConfig) -> dict[str, str]:
    """Those modules use the model's embedding and head, and files repeat these for each."""
    embedding = "model.embed_tokens.weight"
    head = embedding if config.tied_head else "lm_head.weight"
    copies = {}
    for layer in range(config.num_layers, config.num_layers + config.num_mtp_layers):
        copies[f"model.layers.{layer}.embed_tokens.weight"] = embedding
        copies[f"model.layers.{layer}.shared_head.head.weight"] = head
    return copies


FAMILY = Family(
    "deepseek_v3", "DeepseekV3ForCausalLM", _to_config, _to_hf, _weights, copies=_copies
)
