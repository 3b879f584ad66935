"""`ModelConfig`: the shape of a model and the choices that define its function.

One decoder covers the families (Llama, Qwen, Mistral, soft-capped and encoder variants) through
these fields. Does not import jax. Counts that follow from a config are in `flops.py`.
"""

import dataclasses
import math

from jaxtrain.options import option

#: Activations that remat="save:…" can name (given by `checkpoint_name` where they are made).
SAVEABLE = ("query", "key", "value", "attention_out", "ffn_gate", "ffn_up")

_POSITIVE = (
    "vocab_size",
    "num_layers",
    "d_model",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "d_ff",
    "norm_eps",
    "rope_base",
    "attention_block",
)
_POSITIVE_OR_NONE = ("attention_softcap", "logit_softcap", "window", "scan_unroll")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Section `model` of the config."""

    vocab_size: int = option(doc="Token ids, special tokens included (rows of the embedding).")
    num_layers: int = option(doc="Blocks of attention and feed-forward.")
    d_model: int = option(doc="Width of the residual stream.")
    num_heads: int = option(doc="Query heads.")
    num_kv_heads: int = option(doc="Key/value heads; divides num_heads (grouped queries if fewer).")
    head_dim: int = option(doc="Size of one head; even.")
    d_ff: int = option(doc="Feed-forward width.")
    activation: str = option(
        "swiglu",
        "Feed-forward kind: swiglu and geglu have a gate matrix, relu2 (squared ReLU) has none.",
        choices=("swiglu", "geglu", "relu2"),
    )
    tied_head: bool = option(False, "The output head is the embedding transposed.")
    bidirectional: bool = option(False, "Every token sees its whole segment (encoder).")
    norm_eps: float = option(1e-5, "Added to the mean square in RMSNorm.")
    qk_norm: bool = option(False, "RMSNorm over each query and key head, before RoPE.")
    attention_bias: str = option(
        "none",
        "Bias of the attention projections: qkv leaves out the output projection.",
        choices=("none", "qkv", "all"),
    )
    ffn_bias: bool = option(False, "Bias of the feed-forward projections.")
    dropout: float = option(0.0, "Probability of zeroing what each sub-layer adds to the residual.")

    rope_base: float = option(10_000.0, "Base of the rotary wavelengths (theta).")
    rope_scaling: str = option(
        "none",
        "How wavelengths stretch for longer contexts: linear (arXiv 2306.15595), llama3 (of 3.1).",
        choices=("none", "linear", "llama3"),
    )
    rope_factor: float = option(1.0, "Stretch of the context by rope_scaling.")
    rope_original_len: int | None = option(
        None, "llama3: context length in tokens before stretching."
    )
    rope_low_freq_factor: float = option(
        1.0, "llama3: wavelengths above rope_original_len / this are stretched in full."
    )
    rope_high_freq_factor: float = option(
        4.0, "llama3: wavelengths below rope_original_len / this stay as they are."
    )

    window: int | None = option(
        None, "A token sees this many tokens up to itself (bidirectional: to each side)."
    )
    global_every: int | None = option(None, "Every k-th layer ignores the window.")
    attention_softcap: float | None = option(
        None, "Attention scores become cap * tanh(score / cap)."
    )
    logit_softcap: float | None = option(None, "Logits become cap * tanh(logit / cap).")

    attention: str = option(
        "auto",
        "Attention implementation; one that is asked for and cannot be used is an error.",
        choices=("auto", "cudnn", "chunked", "xla"),
        resumable=True,
    )
    attention_block: int = option(
        128, "Queries per block of the chunked attention.", resumable=True
    )
    remat: str = option(
        "none",
        "What the backward pass recomputes: none, full (each block from its input), dots (all but "
        f"weight matmuls), or all but named activations: save:NAME,… of {', '.join(SAVEABLE)}.",
        resumable=True,
    )
    scan_unroll: int | None = option(
        None,
        "Loop turns over the layers that are compiled as one; None: all of up to 8 layers on a CPU "
        "(faster steps, slower compilation), else 1.",
        resumable=True,
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, choices = getattr(self, field.name), field.metadata["choices"]
            if choices and value not in choices:
                raise ValueError(f"{field.name}={value!r} must be one of {', '.join(choices)}.")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{field.name}={value} must be finite.")
            if field.name in _POSITIVE and not value > 0:
                raise ValueError(f"{field.name}={value} must be > 0.")
            if field.name in _POSITIVE_OR_NONE and value is not None and not value > 0:
                raise ValueError(f"{field.name}={value} must be > 0, or None for off.")
        self._check_heads()
        self._check_rope()
        self._check_window()
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be in [0, 1).")
        self.saved_names()

    def saved_names(self) -> tuple[str, ...]:
        """The activations that a remat of the form save:NAME,… keeps; empty for other forms."""
        if self.remat in ("none", "full", "dots"):
            return ()
        kind, _, names = self.remat.partition(":")
        saved = tuple(names.split(","))
        unknown = [name for name in saved if name not in SAVEABLE]
        if kind != "save" or unknown:
            raise ValueError(
                f"remat={self.remat!r} must be none, full, dots, or save: followed by names out of "
                f"{', '.join(SAVEABLE)}, separated by commas."
            )
        return saved

    def layer_window(self, layer: int) -> int | None:
        """The window of layer 0, 1, …: with global_every=k, layers k-1, 2k-1, … have none."""
        is_global = self.global_every is not None and (layer + 1) % self.global_every == 0
        return None if is_global else self.window

    def _check_heads(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} must be a multiple of "
                f"num_kv_heads={self.num_kv_heads}; each key/value head serves as many query heads."
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even; RoPE rotates pairs.")

    def _check_rope(self) -> None:
        if self.rope_factor < 1:
            raise ValueError(f"rope_factor={self.rope_factor} must be >= 1.")
        if self.rope_scaling == "none" and self.rope_factor != 1:
            raise ValueError(
                f"rope_factor={self.rope_factor} must be 1 without scaling; set rope_scaling."
            )
        if self.rope_scaling != "llama3":
            return
        if self.rope_original_len is None or self.rope_original_len <= 0:
            raise ValueError(
                f"rope_original_len={self.rope_original_len} must be > 0 for rope_scaling=llama3; "
                "set it to the context length before stretching."
            )
        if not 0 < self.rope_low_freq_factor < self.rope_high_freq_factor:
            raise ValueError(
                f"rope_low_freq_factor={self.rope_low_freq_factor} must be > 0 and < "
                f"rope_high_freq_factor={self.rope_high_freq_factor}."
            )

    def _check_window(self) -> None:
        if self.global_every is None:
            return
        if self.window is None:
            raise ValueError(
                f"global_every={self.global_every} must come with a window for the other layers; "
                "set window."
            )
        if not 2 <= self.global_every <= self.num_layers:
            raise ValueError(
                f"global_every={self.global_every} must be from 2 to num_layers={self.num_layers}; "
                "for layers that are all alike, set window only."
            )
