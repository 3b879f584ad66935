"""README.md of an export: what the model is, what it was trained on, how well it did."""

import json
import math
from collections.abc import Mapping
from typing import Any

from jaxtrain.hub.family import Family
from jaxtrain.models.config import ModelConfig
from jaxtrain.models.flops import num_params

_HEAD = """\
---
library_name: transformers
pipeline_tag: {task}
tags:
- {model_type}
- jaxtrain
---

# {name}

A `{architecture}` with {params:,} parameters, exported by jaxtrain from step {step:,} of a run.

```python
from transformers import {auto_class}, AutoTokenizer

model = {auto_class}.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
```

| | |
|---|---|
| layers | {config.num_layers} |
| width | {config.d_model} |
| query heads, key/value heads | {config.num_heads}, {config.num_kv_heads} |
| head size | {config.head_dim} |
| feed-forward width | {config.d_ff} |
| vocabulary | {config.vocab_size:,} |
| context | {context} |
| weights | {dtype} |
"""


def model_card(
    name: str,
    family: Family,
    config: ModelConfig,
    dtype: str,
    step: int,
    metadata: Mapping[str, Any],
    data_card: Any,
) -> str:
    """The text of the card.

    Args:
      metadata: of the checkpoint.
      data_card: content of the run's card.json; None where it has none.
    """
    task, kind = "text-generation", "CausalLM"
    if family.is_encoder:
        task, kind = "fill-mask", "MaskedLM"
    elif config.scalar_head:
        task, kind = "text-classification", "SequenceClassification"
    context = "" if config.context_len is None else f"{config.context_len:,} tokens"
    parts = [
        _HEAD.format(
            model_type=family.model_type,
            task=task,
            auto_class=f"AutoModelFor{kind}",
            architecture=family.architecture_of(config),
            name=name,
            params=num_params(config),
            step=step,
            config=config,
            context=context,
            dtype=dtype,
        ),
        _training(metadata),
        _metrics(metadata.get("metrics") or {}),
    ]
    if data_card is not None:
        text = json.dumps(data_card, indent=2, ensure_ascii=False)
        parts.append(f"## Data\n\nThe data card of the run:\n\n```json\n{text}\n```\n")
    return "\n".join(part for part in parts if part)


def _training(metadata: Mapping[str, Any]) -> str:
    rows = []
    if metadata.get("imported"):
        rows.append(f"- imported from `{metadata['imported']['name']}`")
    if metadata.get("base"):
        rows.append(f"- `{metadata['base']['name']}` with low-rank updates (LoRA), merged")
    if metadata.get("updates"):
        rows.append(f"- {metadata['updates']:,} updates")
    if metadata.get("config_hash"):
        rows.append(f"- config {metadata['config_hash']}")
    versions = metadata.get("versions") or {}
    if versions:
        rows.append("- " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    return "## Training\n\n" + "\n".join(rows) + "\n" if rows else ""


def _metrics(metrics: Mapping[str, float]) -> str:
    if not metrics:
        return ""
    rows = [
        f"| {name} | {value:.4f} |" if math.isfinite(value) else f"| {name} | {value} |"
        for name, value in sorted(metrics.items())
    ]
    head = "## Metrics\n\nLosses in nats per target token.\n\n| | |\n|---|---|\n"
    return head + "\n".join(rows) + "\n"
