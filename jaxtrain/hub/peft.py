"""Low-rank updates as an adapter directory that the `peft` package loads onto a Hugging Face model.

    adapter_config.json          rank, alpha, and which modules have an adapter
    adapter_model.safetensors    base_model.model.<module>.lora_A.weight [rank, inputs],
                                 ….lora_B.weight [outputs, rank]
                                 base_model.model.score.weight [1, width], of a reward model

A tensor of theirs that holds several matrices of ours (Phi-3's qkv_proj) gets one adapter: the
updates stand side by side in its rank, each with zeros in the outputs of the others.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxtrain.files import write_json
from jaxtrain.hub.family import Family
from jaxtrain.hub.fields import raise_problems
from jaxtrain.hub.safetensors import Planned, write
from jaxtrain.hub.weights import Leaf, Weight
from jaxtrain.lora.adapters import Target
from jaxtrain.lora.config import LoraConfig
from jaxtrain.models.config import ModelConfig
from jaxtrain.optim.groups import layout

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_SUFFIX = ".weight"


class Update(NamedTuple):
    """A and B of one of our matrices, all layers."""

    target: Target
    a: np.ndarray
    b: np.ndarray


def save_adapter(
    directory: pathlib.Path,
    family: Family,
    model: ModelConfig,
    lora: LoraConfig,
    updates: Mapping[str, Update],
    whole: Mapping[str, np.ndarray],
    leaves: Mapping[str, Leaf],
    dtype: np.dtype,
    base_name: str,
) -> int:
    """Writes both files; returns the bytes of weights.

    Args:
      updates: by the dotted path of the matrix.
      whole: the score's head by its path, where there is one; of what is not adapted, but trained.
      leaves: of the model without padding; see `model.logical_leaves`.
      base_name: of the model that the adapter belongs to, for people and `AutoPeftModel`.

    Raises:
      ValueError: naming the matrices that are no linear layers of the family.
    """
    table = [w for w in family.weights(model) if any(part.path in updates for part in w.parts)]
    _check_linear(table, updates, family.model_type)
    adapters = [_Adapter(weight, updates, leaves) for weight in table]
    tensors = {
        f"base_model.model.{name}": tensor.astype(dtype)
        for adapter in adapters
        for name, tensor in adapter.tensors()
    }
    heads = [w for w in family.weights(model) if any(part.path in whole for part in w.parts)]
    for weight in heads:
        arrays = [whole[part.path] for part in weight.parts]
        tensors[f"base_model.model.{weight.name}"] = weight.tensor_of(arrays, leaves, dtype)
    plan = [Planned(name, tensor.shape) for name, tensor in tensors.items()]
    write(directory / WEIGHTS, plan, dtype, iter(tensors.values()))
    fields = _config(family, model, lora, adapters, base_name)
    if heads:
        names = sorted(_last(weight.name) for weight in heads)
        fields |= {"task_type": "SEQ_CLS", "modules_to_save": names}
    write_json(directory / CONFIG, fields)
    return sum(each.num_bytes(dtype) for each in plan)


def _check_linear(table: Sequence[Weight], updates: Mapping[str, Update], model_type: str) -> None:
    problems = [
        f"{part.path} is no linear layer of a {model_type} model, so PEFT has no adapter for it; "
        "export the merged model (without --adapter)"
        for weight in table
        for part in weight.parts
        if part.path in updates and not _is_linear(weight)
    ]
    raise_problems(problems, "the adapter")


def _is_linear(weight: Weight) -> bool:
    """Whether a tensor of theirs is the matrix of one module of a layer."""
    return weight.indexed == "L" and weight.name.endswith(_SUFFIX)


class _Adapter:
    """The adapters of one kind of module, one for each layer."""

    def __init__(
        self, weight: Weight, updates: Mapping[str, Update], leaves: Mapping[str, Leaf]
    ) -> None:
        self.weight, self._leaves = weight, leaves
        self._parts = [
            (number, updates[part.path])
            for number, part in enumerate(weight.parts)
            if part.path in updates
        ]
        self.num_parts = len(self._parts)

    def modules(self) -> list[str]:
        """Their names, by layer."""
        return [name.removesuffix(_SUFFIX) for name, _ in self.weight.tensors(self._leaves)]

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """lora_A and lora_B of every layer."""
        num_out, num_in = self.weight.shape(self._leaves)
        rank = self._parts[0][1].a.shape[-1]
        places = [self._places(number, update) for number, update in self._parts]
        for layer, module in enumerate(self.modules()):
            a = np.zeros((rank * self.num_parts, num_in), np.float32)
            b = np.zeros((num_out, rank * self.num_parts), np.float32)
            for index, ((_, update), (rows, columns)) in enumerate(
                zip(self._parts, places, strict=True)
            ):
                of_part = slice(index * rank, (index + 1) * rank)
                a[of_part, columns] = update.a[layer].reshape(-1, rank).T
                b[rows, of_part] = update.b[layer].reshape(rank, -1).T
            yield f"{module}.lora_A.weight", a
            yield f"{module}.lora_B.weight", b

    def _places(self, number: int, update: Update) -> tuple[np.ndarray, np.ndarray]:
        """Rows of their matrix by our outputs, and columns by our inputs."""
        shape = self.weight.shape(self._leaves)
        inputs = len(layout(update.target.letters).sides[0])
        rows, columns = (  # views: nothing of the matrix's size is allocated
            self.weight.part_of(np.broadcast_to(index, shape), number, self._leaves)
            for index in (np.arange(shape[0])[:, None], np.arange(shape[1])[None])
        )
        first = (0,) * inputs
        assert (rows[first] == rows[(-1,) * inputs]).all(), self.weight.name
        return rows[first].ravel(), columns[(..., *(0,) * (columns.ndim - inputs))].ravel()


def _config(
    family: Family,
    model: ModelConfig,
    lora: LoraConfig,
    adapters: list[_Adapter],
    base_name: str,
) -> dict[str, Any]:
    assert lora.rank is not None
    fused = {adapter.weight.name: adapter for adapter in adapters if adapter.num_parts > 1}
    patterns = {
        _last(name): adapter.num_parts for name, adapter in fused.items()
    }  # the same alpha / rank as elsewhere
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "target_modules": _target_modules(family.weights(model), adapters),
        "rank_pattern": {name: lora.rank * num for name, num in patterns.items()},
        "alpha_pattern": {name: lora.alpha * num for name, num in patterns.items()},
    }


def _target_modules(table: Any, adapters: list[_Adapter]) -> list[str]:
    """The last part of a module's name where all modules that end so have an adapter."""
    chosen = {adapter.weight.name for adapter in adapters}
    others = {_last(weight.name) for weight in table if weight.name not in chosen}
    names = []
    for adapter in adapters:
        last = _last(adapter.weight.name)
        names += adapter.modules() if last in others else [last]
    return sorted(set(names))


def _last(name: str) -> str:
    return name.removesuffix(_SUFFIX).rpartition(".")[2]
