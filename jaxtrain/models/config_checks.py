"""What fits together in a `ModelConfig`: one check for each group of fields that depend on another.

Each raises a ValueError that begins with the field to change, its value, and what it must be.
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtrain.models.config import ModelConfig

#: Scalings that depend on the context length before stretching.
_NEED_ORIGINAL_LEN = ("dynamic", "yarn", "llama3", "longrope")
_ROUTING = {
    "num_experts_per_token": 1,
    "d_ff_expert": None,
    "num_shared_experts": 0,
    "num_dense_layers": 0,
    "router_scores": "softmax",
    "router_normalize": True,
    "router_scale": 1.0,
    "router_bias": False,
    "router_selection_bias": False,
    "router_bias_rate": 0.0,
    "router_balance_weight": 0.0,
    "router_balance_over": "row",
    "router_z_weight": 0.0,
    "expert_dispatch": "dense",
    "expert_capacity_factor": 1.25,
    "num_router_groups": 1,
    "num_router_groups_per_token": 1,
}
_LATENT = ("q_latent_dim", "rope_head_dim", "value_head_dim")


def check(config: "ModelConfig") -> None:
    """Raises a ValueError for the first group of fields that make no model together."""
    _check_heads(config)
    _check_encoder(config)
    _check_latent(config)
    _check_rope(config)
    _check_window(config)
    _check_experts(config)
    _check_further_tokens(config)
    _check_scalar_head(config)


def _check_heads(config: "ModelConfig") -> None:
    if config.num_heads % config.num_kv_heads:
        raise ValueError(
            f"num_heads={config.num_heads} must be a multiple of "
            f"num_kv_heads={config.num_kv_heads}; each key/value head serves as many query heads."
        )
    if config.head_dim % 2:
        raise ValueError(f"head_dim={config.head_dim} must be even; RoPE rotates pairs.")
    if not 0 < config.rope_frac <= 1 or config.rope_dim < 2 or config.rope_dim % 2:
        raise ValueError(
            f"rope_frac={config.rope_frac} must be in (0, 1] and turn an even number of the "
            f"head_dim={config.head_dim} dimensions, not {config.head_dim * config.rope_frac:g}."
        )


def _check_rope(config: "ModelConfig") -> None:
    if config.rope_factor < 1:
        raise ValueError(f"rope_factor={config.rope_factor} must be >= 1.")
    if config.rope_scaling == "none" and config.rope_factor != 1:
        raise ValueError(
            f"rope_factor={config.rope_factor} must be 1 without scaling; set rope_scaling."
        )
    if config.rope_scaling in _NEED_ORIGINAL_LEN and config.rope_original_len is None:
        raise ValueError(
            f"rope_original_len=None must be > 0 for rope_scaling={config.rope_scaling}; set it "
            "to the context length before stretching."
        )
    if config.rope_scaling not in ("yarn", "longrope") and config.rope_attention_factor is not None:
        raise ValueError(
            f"rope_attention_factor={config.rope_attention_factor} is for rope_scaling yarn and "
            "longrope only; leave it None."
        )
    if config.rope_scaling == "llama3" and not (
        0 < config.rope_low_freq_factor < config.rope_high_freq_factor
    ):
        raise ValueError(
            f"rope_low_freq_factor={config.rope_low_freq_factor} must be > 0 and < "
            f"rope_high_freq_factor={config.rope_high_freq_factor}."
        )
    if config.rope_beta_slow >= config.rope_beta_fast:
        raise ValueError(
            f"rope_beta_slow={config.rope_beta_slow} must be < "
            f"rope_beta_fast={config.rope_beta_fast}."
        )
    for name in ("rope_short_factors", "rope_long_factors"):
        factors = getattr(config, name)
        num = config.rope_dim // 2 if config.rope_scaling == "longrope" else 0
        if len(factors) != num or not all(0 < each < math.inf for each in factors):
            raise ValueError(
                f"{name}={factors} must be {num} positive numbers for rope_scaling="
                f"{config.rope_scaling}: one for each turned pair under longrope, else none."
            )


def _check_window(config: "ModelConfig") -> None:
    for name in ("global_every", "global_layers", "rope_local_base"):
        if getattr(config, name) and config.window is None:
            raise ValueError(
                f"{name}={getattr(config, name)} must come with a window for the other layers; "
                "set window."
            )
    if config.global_every is not None and not 2 <= config.global_every <= config.num_layers:
        raise ValueError(
            f"global_every={config.global_every} must be from 2 to num_layers={config.num_layers}; "
            "for layers that are all alike, set window only."
        )
    layers = config.global_layers
    if layers and (
        config.global_every is not None
        or list(layers) != sorted(set(layers))
        or not 0 <= layers[0] <= layers[-1] < config.num_layers
        or len(layers) == config.num_layers
    ):
        raise ValueError(
            f"global_layers={layers} must rise, be below num_layers={config.num_layers}, leave a "
            "layer with the window, and not come with global_every."
        )


def _check_encoder(config: "ModelConfig") -> None:
    if config.num_token_types < 0:
        raise ValueError(f"num_token_types={config.num_token_types} must be >= 0.")
    if config.num_token_types and config.num_positions is None:
        raise ValueError(
            f"num_token_types={config.num_token_types} must be 0 without learned positions, whose "
            "norm they share; set num_positions."
        )
    for name in ("num_positions", "masked_lm_head"):
        if getattr(config, name) and not config.bidirectional:
            raise ValueError(
                f"{name}={getattr(config, name)} is for encoders only; set bidirectional."
            )
    if config.norm == "layer" and (config.norm_offset or config.qk_norm != "none"):
        raise ValueError(
            "norm='layer' is not computed with norm_offset or qk_norm; they are of RMSNorm."
        )


def _check_further_tokens(config: "ModelConfig") -> None:
    if config.num_mtp_layers < 0:
        raise ValueError(f"num_mtp_layers={config.num_mtp_layers} must be >= 0.")
    if config.num_mtp_layers and (
        config.bidirectional or config.window or config.norm_placement == "residual"
    ):
        raise ValueError(
            f"num_mtp_layers={config.num_mtp_layers} must be 0 for encoders, for layers with a "
            "window, and without a final norm: the modules are not made for them."
        )
    if not config.mtp_weight >= 0:
        raise ValueError(f"mtp_weight={config.mtp_weight} must be >= 0 and finite.")
    steps = [step for step, _ in config.mtp_weight_changes]
    if any(a >= b for a, b in zip([0, *steps], steps, strict=False)):
        raise ValueError(
            f"mtp_weight_changes={config.mtp_weight_changes} must have steps above 0 that rise "
            "strictly."
        )
    if not all(weight >= 0 and math.isfinite(weight) for _, weight in config.mtp_weight_changes):
        raise ValueError(
            f"mtp_weight_changes={config.mtp_weight_changes} must have weights >= 0 and finite."
        )


def _check_latent(config: "ModelConfig") -> None:
    if config.kv_latent_dim is None:
        for name in _LATENT:
            if getattr(config, name) is not None:
                raise ValueError(
                    f"{name}={getattr(config, name)} must be None without a latent for keys and "
                    "values; set kv_latent_dim."
                )
        return
    rope = config.rope_head_dim
    if rope is None or rope % 2 or rope >= config.head_dim:
        raise ValueError(
            f"rope_head_dim={rope} must be even and less than head_dim={config.head_dim} with "
            "kv_latent_dim: the rest of a head carries no position."
        )
    if config.num_kv_heads != config.num_heads:
        raise ValueError(
            f"num_kv_heads={config.num_kv_heads} must be num_heads={config.num_heads} with "
            "kv_latent_dim: every head has keys of its own, made of one latent."
        )
    wrong = {
        "qk_norm": config.qk_norm != "none",
        "attention_bias": config.attention_bias != "none",
        "attention_sinks": config.attention_sinks,
        "rope_frac": config.rope_frac != 1,
        "num_positions": config.num_positions is not None,
    }
    for name, is_set in wrong.items():
        if is_set:
            raise ValueError(
                f"{name}={getattr(config, name)!r} is not computed with kv_latent_dim; unset it."
            )


def _check_experts(config: "ModelConfig") -> None:
    if config.num_experts is None:
        for name, default in _ROUTING.items():
            if getattr(config, name) != default:
                raise ValueError(
                    f"{name}={getattr(config, name)!r} must be {default!r} without experts; set "
                    "num_experts."
                )
        return
    if not config.is_gated:
        raise ValueError(
            f"activation={config.activation!r} is not computed with num_experts; take a gated one."
        )
    if not 0 <= config.num_dense_layers < config.num_layers:
        raise ValueError(
            f"num_dense_layers={config.num_dense_layers} must be from 0 to below "
            f"num_layers={config.num_layers}; for a dense model leave num_experts None."
        )
    for name in ("router_bias_rate", "router_balance_weight", "router_z_weight"):
        if getattr(config, name) < 0:
            raise ValueError(f"{name}={getattr(config, name)} must be >= 0.")
    if config.router_bias_rate and not config.router_selection_bias:
        raise ValueError(
            f"router_bias_rate={config.router_bias_rate} must be 0 without a bias to move; set "
            "router_selection_bias."
        )
    if config.num_shared_experts < 0:
        raise ValueError(f"num_shared_experts={config.num_shared_experts} must be >= 0.")
    _check_groups(config, config.num_experts)


def _check_groups(config: "ModelConfig", num_experts: int) -> None:
    groups, chosen = config.num_router_groups, config.num_router_groups_per_token
    if num_experts % groups or not 1 <= chosen <= groups:
        raise ValueError(
            f"num_router_groups={groups} must divide num_experts={num_experts} and be at least "
            f"num_router_groups_per_token={chosen}."
        )
    size = num_experts // groups
    if config.router_scores == "sigmoid" and groups > 1 and size < 2:
        raise ValueError(
            f"num_router_groups={groups} must leave two experts a group: its score is the sum of "
            "its best two."
        )
    if not 1 <= config.num_experts_per_token <= chosen * size:
        raise ValueError(
            f"num_experts_per_token={config.num_experts_per_token} must be from 1 to the "
            f"{chosen * size} experts that a token can choose from."
        )


def _check_scalar_head(config: "ModelConfig") -> None:
    if config.scalar_head and (config.masked_lm_head or config.num_mtp_layers):
        other = "masked_lm_head" if config.masked_lm_head else "num_mtp_layers"
        raise ValueError(
            f"scalar_head=True scores positions, and {other}={getattr(config, other)} predicts "
            f"tokens; turn {other} off."
        )
