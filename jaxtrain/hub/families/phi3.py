"""Phi-3 and Phi-4 (arXiv 2404.14219): fused projections, partial rotary, LongRoPE."""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import decoder
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import context_len, read_rope, write_scaling
from jaxtrain.hub.weights import Part, Weight
from jaxtrain.models.config import ModelConfig


def _to_config(fields: Fields) -> Mapping[str, Any]:
    sizes = decoder.read_sizes(fields, eps=1e-5)
    fields.only("embd_pdrop", 0, 0.0, why="embeddings have no dropout here; set it to 0")
    for name in ("attention_bias", "mlp_bias", "lm_head_bias"):
        fields.only(name, False, why="this family has no biases")
    for name in ("full_attn_mod", "interpolate_factor"):
        fields.only(name, 1, why="it is of another architecture")
    rope = read_rope(fields, sizes["head_dim"], partial=True)
    if rope.get("rope_scaling", "none") not in ("none", "longrope"):
        fields.problems.append(
            f"rope_scaling of type {rope['rope_scaling']} must be longrope in this family"
        )
    return {
        **sizes,
        **rope,
        **decoder.read_silu(fields),
        "window": fields.integer("sliding_window", None),
        "dropout": fields.number("resid_pdrop", 0.0),
    }


def _to_hf(config: ModelConfig) -> Mapping[str, Any]:
    """`rope_scaling` has the three fields that all versions of the reference code expect."""
    rope: dict[str, Any] = {
        "rope_theta": config.rope_base,
        "rope_scaling": None,
        "max_position_embeddings": context_len(config),
        "partial_rotary_factor": config.rope_frac,
    }
    scaling = dict(write_scaling(config) or {})
    if scaling:
        original = scaling.pop("original_max_position_embeddings", 0)
        rope["original_max_position_embeddings"] = original
        if original and scaling["factor"] == max(rope["max_position_embeddings"] / original, 1):
            del scaling["factor"]  # it follows
        rope["rope_scaling"] = {"type": scaling.pop("rope_type"), **scaling}
    sizes = decoder.write_sizes(config, **rope)
    if config.head_dim == config.d_model // config.num_heads:
        del sizes["head_dim"]  # the family has no such field
    return {
        **sizes,
        "hidden_act": "silu",
        "sliding_window": config.window,
        "resid_pdrop": config.dropout,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    of, ours = "model.layers.{L}.", "blocks."
    return [
        *decoder.ends(config),
        *decoder.PRE_NORMS,
        Weight(
            f"{of}self_attn.qkv_proj.weight",
            "* D",
            Part(f"{ours}attention.w_q_DNH", "N H"),
            Part(f"{ours}attention.w_k_DKH", "K H"),
            Part(f"{ours}attention.w_v_DKH", "K H"),
        ),
        Weight(f"{of}self_attn.o_proj.weight", "D (N H)", f"{ours}attention.w_o_NHD"),
        Weight(
            f"{of}mlp.gate_up_proj.weight",
            "* D",
            Part(f"{ours}ffn.w_gate_DF", "F"),
            Part(f"{ours}ffn.w_up_DF", "F"),
        ),
        Weight(f"{of}mlp.down_proj.weight", "D F", f"{ours}ffn.w_down_FD"),
    ]


FAMILY = Family("phi3", "Phi3ForCausalLM", _to_config, _to_hf, _weights)
