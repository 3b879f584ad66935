"""Gemma 3, text only (arXiv 2503.19786): five local layers to a global one, two RoPE bases."""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import gemma2
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import context_len, read_section, write_scaling
from jaxtrain.models.config import ModelConfig

_DEFAULT_PERIOD = 6
_DEFAULT_GLOBAL_BASE, _DEFAULT_LOCAL_BASE = 1_000_000.0, 10_000.0


def _to_config(fields: Fields) -> Mapping[str, Any]:
    gemma = gemma2.read_gemma(fields)
    # What `transformers` names and does not use; files have null.
    fields.only("attn_logit_softcapping", None, why="this family has no cap of attention scores")
    period = fields.integer("sliding_window_pattern", _DEFAULT_PERIOD)
    fields.without_effect("_sliding_window_pattern")  # a copy
    windows = gemma2.read_period(fields, period, gemma["num_layers"])
    return {
        **gemma,
        **_read_rope(fields, gemma["head_dim"], has_window=windows.get("window") is not None),
        **windows,
        "qk_norm": "head",
        "logit_softcap": fields.number("final_logit_softcapping", None),
    }


def _read_rope(fields: Fields, head_dim: int, *, has_window: bool) -> dict[str, Any]:
    """Global layers have `rope_theta` and `rope_scaling`, local ones a base alone."""
    base = fields.number("rope_theta", _DEFAULT_GLOBAL_BASE)
    local = fields.number("rope_local_base_freq", _DEFAULT_LOCAL_BASE)
    section, both = fields.section("rope_scaling"), fields.section("rope_parameters")
    if both is not None:
        if section is not None:
            fields.problems.append("rope_parameters and rope_scaling are both given; keep one")
        section, of_local = both.section("full_attention"), both.section("sliding_attention")
        both.refuse_rest()
        if of_local is not None:
            of_local.path = "rope_parameters.sliding_attention."
            of_local.only("rope_type", "default", why="local layers are not stretched here")
            local = of_local.number("rope_theta", local)
            of_local.refuse_rest()
    rope = read_section(fields, section, base, 1.0, head_dim)
    return {**rope, "rope_local_base": local} if has_window else rope


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    rope = {
        "rope_theta": config.rope_base,
        "rope_local_base_freq": config.rope_local_base or config.rope_base,
        "rope_scaling": write_scaling(config),
        "max_position_embeddings": context_len(config),
    }
    return {
        **gemma2.write_gemma(config, **rope),
        "sliding_window": config.window or context_len(config),
        "sliding_window_pattern": config.global_every or _DEFAULT_PERIOD,
    }


FAMILY = Family("gemma3_text", "Gemma3ForCausalLM", _to_config, _to_hf, gemma2.weights)
