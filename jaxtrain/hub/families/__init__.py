"""The families, by their `model_type`; one file each.

To add one: a file with `FAMILY`, an entry in `_FAMILIES`, a line in tests/hub/families/ and one in
docs/models.md.
"""

from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.families import (
    bert,
    deepseek_v2,
    deepseek_v3,
    gemma2,
    gemma3,
    gpt_oss,
    llama,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
)
from jaxtrain.hub.family import Family
from jaxtrain.models.config import ModelConfig

#: In the order in which an export looks for one that can express a config.
_FAMILIES = (
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    olmo2.FAMILY,
    phi3.FAMILY,
    gemma2.FAMILY,
    gemma3.FAMILY,
    mixtral.FAMILY,
    qwen3_moe.FAMILY,
    deepseek_v2.FAMILY,
    deepseek_v3.FAMILY,
    gpt_oss.FAMILY,
    bert.FAMILY,
)
BY_MODEL_TYPE: Mapping[str, Family] = {family.model_type: family for family in _FAMILIES}

_REFUSED = {
    "gemma3": "it has a vision tower, and only text models are read (model_type gemma3_text)",
}


def family_of(hf: Mapping[str, Any], path: str = "config.json") -> Family:
    """The family of a config.json.

    Raises:
      ValueError: where there is none, listing those that there are.
    """
    model_type = str(hf.get("model_type"))
    if model_type not in BY_MODEL_TYPE:
        reason = _REFUSED.get(model_type, f"known are {', '.join(BY_MODEL_TYPE)}")
        raise ValueError(f"{path}: model_type={model_type!r} is not supported: {reason}.")
    return BY_MODEL_TYPE[model_type]


def choose(config: ModelConfig) -> Family:
    """The first family that can express a config.

    Raises:
      ValueError: where none can, with what each would lose.
    """
    lost = {}
    for family in _FAMILIES:
        lost[family.model_type] = family.cannot_express(config)
        if not lost[family.model_type]:
            return family
    listed = "; ".join(
        f"{name} cannot express {', '.join(fields)}" for name, fields in lost.items()
    )
    raise ValueError(f"no Hugging Face family computes what this model does: {listed}.")
