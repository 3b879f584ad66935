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
    fields.only(
        "num_nextn_predict_layers", 0, why="modules that predict further tokens are not read"
    )
    return {
        **deepseek_v2.read_latent(fields),
        **deepseek_v2.read_experts(fields, num_dense=3, num_shared=1),
        "num_router_groups": fields.integer("n_group", _DEFAULT_GROUPS),
        "num_router_groups_per_token": fields.integer("topk_group", _DEFAULT_GROUPS_PER_TOKEN),
        "router_scale": fields.number("routed_scaling_factor", 2.5),
        "router_scores": "sigmoid",
        "router_normalize": fields.flag("norm_topk_prob", True),
        "router_selection_bias": True,
        "rope_interleaved": fields.flag("rope_interleave", True),
    }


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    return {
        **deepseek_v2.write_latent(config),
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": config.router_normalize,
        "rope_interleave": config.rope_interleaved,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    return [*decoder.ends(config), *deepseek_v2.blocks(config)]


FAMILY = Family("deepseek_v3", "DeepseekV3ForCausalLM", _to_config, _to_hf, _weights)
