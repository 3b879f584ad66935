"""Weights pickled by PyTorch, for the models that have nothing else.

PyTorch's own loader reads them with `weights_only=True`: a restricted unpickler that makes tensors
and nothing else. Needs PyTorch; never used unless asked for by `--allow_pickle`.
"""

import pathlib
from typing import Any

import numpy as np

from jaxtrain.hub.safetensors import FLOATS, Entry

_NAMES = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16"}


class PickledFile:
    """The tensors of a `.bin` file, mapped into memory."""

    def __init__(self, path: pathlib.Path) -> None:
        """Raises:
        ValueError: where PyTorch is missing or refuses the file.
        """
        try:
            import torch
        except ImportError as error:
            raise ValueError(f"{path} is pickled, and reading it needs PyTorch: {error}") from error
        self.path = path
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # whatever an unpickler meets
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise ValueError(f"{path} is not a plain file of tensors: {reason}") from error
        others = [n for n, value in state.items() if not isinstance(value, torch.Tensor)]
        if others:
            raise ValueError(f"{path} holds other things than tensors: {', '.join(others)}")
        self._tensors: dict[str, Any] = dict(state)
        self.entries = {
            name: Entry(
                _NAMES.get(str(tensor.dtype), str(tensor.dtype)),
                tuple(tensor.shape),
                0,
                tensor.numel() * tensor.element_size(),
            )
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str) -> np.ndarray:
        """A tensor; shares the memory of PyTorch's."""
        import torch

        tensor = self._tensors[name].contiguous()
        if tensor.dtype == torch.bfloat16:  # which NumPy does not know by itself
            return tensor.view(torch.int16).numpy().view(FLOATS["BF16"])
        return tensor.numpy()
