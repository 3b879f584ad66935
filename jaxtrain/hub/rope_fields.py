"""Rotary embeddings between config.json and `ModelConfig`: the old fields and the new ones.

`transformers` 4 has `rope_theta` and `rope_scaling`, 5 has `rope_parameters`; both are read. What
is written is the old form, which both versions and the inference engines understand.
"""

import math
from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.fields import Fields
from jaxtrain.models.config import ModelConfig

_DEFAULT_BASE = 10_000.0
_ALIASES = {"default": "none", "su": "longrope"}
_KINDS = ("none", "linear", "dynamic", "yarn", "llama3", "longrope")


def read_rope(
    fields: Fields, head_dim: int, *, partial: bool = False, base: float = _DEFAULT_BASE
) -> dict[str, Any]:
    """The RoPE fields of a `ModelConfig` with one kind of rotation for all layers.

    Args:
      base: what holds where the file has no `rope_theta`.
      partial: whether the family's own code can turn a part of a head.
    """
    section = _one_section(fields)
    base = fields.number("rope_theta", base)
    frac = fields.number("partial_rotary_factor", 1.0)
    rope = read_section(fields, section, base, frac, head_dim)
    if not partial and rope.get("rope_frac", 1) != 1:
        fields.problems.append(
            f"partial_rotary_factor={rope['rope_frac']} must be 1: this family turns whole heads"
        )
    return rope


def read_section(
    fields: Fields, section: Fields | None, base: float, frac: float, head_dim: int
) -> dict[str, Any]:
    """One object of RoPE parameters; `base` and `frac` are what holds where it has none."""
    original_len = fields.integer("original_max_position_embeddings", None)
    max_len = fields.integer("max_position_embeddings", None)
    if section is None:
        return {"rope_base": base, "rope_frac": frac}
    old, new = section.text("type", None), section.text("rope_type", None)
    given = new or old or "default"
    kind = _ALIASES.get(given, given)
    if kind not in _KINDS or (old and new and _ALIASES.get(old, old) != kind):
        fields.problems.append(
            f"{section.path}rope_type={given!r} must be default, {', '.join(_KINDS[1:])}"
            + (f", and agree with type={old!r}" if old and new else "")
        )
        return {}
    frac = section.number("partial_rotary_factor", frac)
    values: dict[str, Any] = {
        "rope_base": section.number("rope_theta", base),
        "rope_frac": frac,
        "rope_scaling": kind,
    }
    lengths = section.integer("original_max_position_embeddings", None) or original_len, max_len
    values |= _READERS[kind](section, *lengths, int(head_dim * frac) // 2)
    section.refuse_rest()
    return values


def _one_section(fields: Fields) -> Fields | None:
    new, old = fields.section("rope_parameters"), fields.section("rope_scaling")
    if new and old and dict(new.values) != dict(old.values):
        fields.problems.append("rope_parameters and rope_scaling contradict each other; keep one")
    return new or old


def _read_none(section: Fields, original: int | None, max_len: int | None, pairs: int) -> dict:
    del original, max_len, pairs
    # 1 is what old files have beside "default".
    section.only("factor", 1, 1.0, why="there is nothing to stretch without a rope_type")
    return {}


def _read_linear(section: Fields, original: int | None, max_len: int | None, pairs: int) -> dict:
    del original, max_len, pairs
    return {"rope_factor": section.number("factor")}


def _read_dynamic(section: Fields, original: int | None, max_len: int | None, pairs: int) -> dict:
    del pairs
    # `transformers` counts from max_position_embeddings, whatever else is given.
    if original not in (None, max_len):
        section.problems.append(
            f"original_max_position_embeddings={original} must be max_position_embeddings="
            f"{max_len} for dynamic RoPE, or absent"
        )
    return {"rope_factor": section.number("factor"), "rope_original_len": max_len}


def _read_llama3(section: Fields, original: int | None, max_len: int | None, pairs: int) -> dict:
    del pairs
    return {
        "rope_factor": section.number("factor"),
        "rope_original_len": original or max_len,
        "rope_low_freq_factor": section.number("low_freq_factor"),
        "rope_high_freq_factor": section.number("high_freq_factor"),
    }


def _read_yarn(section: Fields, original: int | None, max_len: int | None, pairs: int) -> dict:
    del pairs
    original = original or max_len
    factor = section.number("factor", None)
    if factor is None:
        factor = max_len / original if max_len and original else 1.0
    attention = section.number("attention_factor", None)
    first, all_dim = section.number("mscale", 0.0), section.number("mscale_all_dim", 0.0)
    if attention is None and first and all_dim:  # DeepSeek's two terms
        attention = mscale(factor, first) / mscale(factor, all_dim)
    return {
        "rope_factor": factor,
        "rope_original_len": original,
        "rope_attention_factor": attention,
        "rope_beta_fast": section.number("beta_fast", 32.0),
        "rope_beta_slow": section.number("beta_slow", 1.0),
        "rope_truncate": section.flag("truncate", True),
    }


def mscale(factor: float, weight: float) -> float:
    """How much sharper attention gets for a stretch: DeepSeek's weighted form of yarn's term."""
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def _read_longrope(section: Fields, original: int | None, max_len: int | None, pairs: int) -> dict:
    original = original or max_len
    ratio = max_len / original if max_len and original else 1.0
    factors = {}
    for name in ("short", "long"):
        factors[name] = tuple(section.sequence(f"{name}_factor"))
        if len(factors[name]) != pairs or not all(_is_number(each) for each in factors[name]):
            section.problems.append(
                f"{section.path}{name}_factor must be {pairs} numbers, one for each pair"
            )
    return {
        "rope_factor": max(section.number("factor", ratio), 1.0),
        "rope_original_len": original,
        "rope_attention_factor": section.number("attention_factor", None),
        "rope_short_factors": tuple(map(float, filter(_is_number, factors["short"]))),
        "rope_long_factors": tuple(map(float, filter(_is_number, factors["long"]))),
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_READERS = {
    "none": _read_none,
    "linear": _read_linear,
    "dynamic": _read_dynamic,
    "yarn": _read_yarn,
    "llama3": _read_llama3,
    "longrope": _read_longrope,
}


def write_rope(config: ModelConfig) -> dict[str, Any]:
    """The fields of config.json for a config's RoPE, `max_position_embeddings` among them."""
    written: dict[str, Any] = {
        "rope_theta": config.rope_base,
        "rope_scaling": write_scaling(config),
        "max_position_embeddings": context_len(config),
    }
    if config.rope_frac != 1:
        written["partial_rotary_factor"] = config.rope_frac
    return written


def context_len(config: ModelConfig) -> int:
    """What config.json calls `max_position_embeddings`."""
    if config.rope_scaling == "dynamic":  # is counted from there
        assert config.rope_original_len is not None
        return config.rope_original_len
    if config.context_len is None:
        raise ValueError("context_len=None: an export states how much context a model is for.")
    return config.context_len


def write_scaling(config: ModelConfig) -> Mapping[str, Any] | None:
    """The object `rope_scaling`."""
    if config.rope_scaling == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": config.rope_scaling, "factor": config.rope_factor}
    if config.rope_scaling in ("yarn", "llama3", "longrope"):
        scaling["original_max_position_embeddings"] = config.rope_original_len
    if config.rope_scaling == "llama3":
        scaling["low_freq_factor"] = config.rope_low_freq_factor
        scaling["high_freq_factor"] = config.rope_high_freq_factor
    if config.rope_scaling == "yarn":
        scaling["beta_fast"] = config.rope_beta_fast
        scaling["beta_slow"] = config.rope_beta_slow
        if not config.rope_truncate:
            scaling["truncate"] = False
    if config.rope_scaling == "longrope":
        scaling["short_factor"] = list(config.rope_short_factors)
        scaling["long_factor"] = list(config.rope_long_factors)
    if config.rope_attention_factor is not None:
        scaling["attention_factor"] = config.rope_attention_factor
    return scaling
