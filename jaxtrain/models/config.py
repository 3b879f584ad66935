"""`ModelConfig`: the shape of a model and the choices that define its function.

One decoder covers the families (Llama, Mistral, Qwen, Gemma, Phi-3, OLMo-2, encoders) through these
fields; `hub/families/` says which fields make which. Does not import jax. Counts that follow from a
config are in `flops.py`.
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
    "rope_beta_fast",
    "rope_beta_slow",
    "attention_block",
    "vocab_multiple",
)
_POSITIVE_OR_NONE = (
    "attention_softcap",
    "attention_scale",
    "logit_softcap",
    "window",
    "scan_unroll",
    "context_len",
    "rope_local_base",
    "rope_original_len",
    "rope_attention_factor",
)
#: Scalings that depend on the context length before stretching.
_NEED_ORIGINAL_LEN = ("dynamic", "yarn", "llama3", "longrope")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Section `model` of the config."""

    vocab_size: int = option(doc="Token ids, special tokens included.")
    num_layers: int = option(doc="Blocks of attention and feed-forward.")
    d_model: int = option(doc="Width of the residual stream.")
    num_heads: int = option(doc="Query heads.")
    num_kv_heads: int = option(doc="Key/value heads; divides num_heads (grouped queries if fewer).")
    head_dim: int = option(doc="Size of one head; even.")
    d_ff: int = option(doc="Feed-forward width.")
    vocab_multiple: int = option(
        1,
        "Embedding and head are padded to a multiple of this many rows, so that mesh axes divide "
        "them; padding has no probability and is not exported.",
    )
    context_len: int | None = option(
        None,
        "Tokens of context that the model is made for, as exports state it; None: data.seq_len.",
        resumable=True,
    )
    activation: str = option(
        "swiglu",
        "Feed-forward kind: swiglu and geglu have a gate matrix, relu2 (squared ReLU) has none.",
        choices=("swiglu", "geglu", "relu2"),
    )
    tied_head: bool = option(False, "The output head is the embedding transposed.")
    scale_embedding: bool = option(
        False,
        "Embeddings are multiplied by sqrt(d_model) where they enter the first block (Gemma).",
    )
    bidirectional: bool = option(False, "Every token sees its whole segment (encoder).")
    norm_eps: float = option(1e-5, "Added to the mean square in RMSNorm.")
    norm_offset: bool = option(
        False, "RMSNorms multiply by 1 + scale, and scales start at 0 (Gemma)."
    )
    norm_placement: str = option(
        "pre",
        "Where a sub-layer has its RMSNorm: on its input (pre), on its output before it joins the "
        "residual (post, OLMo-2), or on both (Gemma).",
        choices=("pre", "post", "both"),
    )
    qk_norm: str = option(
        "none",
        "RMSNorm of queries and keys before RoPE: over each head (Qwen3), or over all heads of a "
        "token at once (OLMo-2).",
        choices=("none", "head", "all"),
    )
    attention_scale: float | None = option(
        None, "Factor of the attention scores; None: head_dim to the power of -1/2."
    )
    attention_bias: str = option(
        "none",
        "Bias of the attention projections: qkv leaves out the output projection.",
        choices=("none", "qkv", "all"),
    )
    ffn_bias: bool = option(False, "Bias of the feed-forward projections.")
    dropout: float = option(0.0, "Probability of zeroing what each sub-layer adds to the residual.")

    rope_base: float = option(10_000.0, "Base of the rotary wavelengths (theta).")
    rope_local_base: float | None = option(
        None, "Base of the layers with a window, never scaled (Gemma 3); None: as the others."
    )
    rope_frac: float = option(
        1.0, "Fraction of each head that RoPE turns: its first dimensions (partial rotary)."
    )
    rope_scaling: str = option(
        "none",
        "How wavelengths stretch for longer contexts: linear (arXiv 2306.15595), dynamic (NTK), "
        "yarn (arXiv 2309.00071), llama3 (of 3.1), longrope (arXiv 2402.13753).",
        choices=("none", "linear", "dynamic", "yarn", "llama3", "longrope"),
    )
    rope_factor: float = option(1.0, "Stretch of the context by rope_scaling.")
    rope_original_len: int | None = option(
        None, "Context length in tokens before stretching (all scalings but linear)."
    )
    rope_low_freq_factor: float = option(
        1.0, "llama3: wavelengths above rope_original_len / this are stretched in full."
    )
    rope_high_freq_factor: float = option(
        4.0, "llama3: wavelengths below rope_original_len / this stay as they are."
    )
    rope_beta_fast: float = option(
        32.0, "yarn: pairs that turn more often than this in rope_original_len stay as they are."
    )
    rope_beta_slow: float = option(
        1.0, "yarn: pairs that turn less often than this in rope_original_len stretch in full."
    )
    rope_truncate: bool = option(True, "yarn: the range between the two is rounded outwards.")
    rope_attention_factor: float | None = option(
        None, "yarn, longrope: factor of cosines and sines; None: by the scaling's own formula."
    )
    rope_short_factors: tuple[float, ...] = option(
        (), "longrope: stretch of each pair in documents of up to rope_original_len tokens."
    )
    rope_long_factors: tuple[float, ...] = option(
        (), "longrope: stretch of each pair in longer documents."
    )

    window: int | None = option(
        None, "A token sees this many tokens up to itself (bidirectional: to each side)."
    )
    global_every: int | None = option(None, "Every k-th layer ignores the window.")
    global_layers: tuple[int, ...] = option(
        (), "Layers (from 0) that ignore the window where they follow no period."
    )
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

    @property
    def num_vocab_rows(self) -> int:
        """Rows of the embedding, padding included."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def rope_dim(self) -> int:
        """How many dimensions of a head RoPE turns."""
        return int(self.head_dim * self.rope_frac)

    def layer_window(self, layer: int) -> int | None:
        """The window of layer 0, 1, …: with global_every=k, layers k-1, 2k-1, … have none."""
        is_kth = self.global_every is not None and (layer + 1) % self.global_every == 0
        return None if is_kth or layer in self.global_layers else self.window

    @property
    def layer_period(self) -> int:
        """After how many layers the pattern of windows repeats; num_layers if it never does."""
        windows = [self.layer_window(layer) for layer in range(self.num_layers)]
        periods = range(1, self.num_layers)
        repeats = (p for p in periods if windows[p:] == windows[: self.num_layers - p])
        return next(repeats, self.num_layers)

    def _check_heads(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} must be a multiple of "
                f"num_kv_heads={self.num_kv_heads}; each key/value head serves as many query heads."
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even; RoPE rotates pairs.")
        if not 0 < self.rope_frac <= 1 or self.rope_dim < 2 or self.rope_dim % 2:
            raise ValueError(
                f"rope_frac={self.rope_frac} must be in (0, 1] and turn an even number of the "
                f"head_dim={self.head_dim} dimensions, not {self.head_dim * self.rope_frac:g}."
            )

    def _check_rope(self) -> None:
        if self.rope_factor < 1:
            raise ValueError(f"rope_factor={self.rope_factor} must be >= 1.")
        if self.rope_scaling == "none" and self.rope_factor != 1:
            raise ValueError(
                f"rope_factor={self.rope_factor} must be 1 without scaling; set rope_scaling."
            )
        if self.rope_scaling in _NEED_ORIGINAL_LEN and self.rope_original_len is None:
            raise ValueError(
                f"rope_original_len=None must be > 0 for rope_scaling={self.rope_scaling}; set it "
                "to the context length before stretching."
            )
        if self.rope_scaling not in ("yarn", "longrope") and self.rope_attention_factor is not None:
            raise ValueError(
                f"rope_attention_factor={self.rope_attention_factor} is for rope_scaling yarn and "
                "longrope only; leave it None."
            )
        if self.rope_scaling == "llama3" and not (
            0 < self.rope_low_freq_factor < self.rope_high_freq_factor
        ):
            raise ValueError(
                f"rope_low_freq_factor={self.rope_low_freq_factor} must be > 0 and < "
                f"rope_high_freq_factor={self.rope_high_freq_factor}."
            )
        if self.rope_beta_slow >= self.rope_beta_fast:
            raise ValueError(
                f"rope_beta_slow={self.rope_beta_slow} must be < "
                f"rope_beta_fast={self.rope_beta_fast}."
            )
        for name in ("rope_short_factors", "rope_long_factors"):
            factors = getattr(self, name)
            num = self.rope_dim // 2 if self.rope_scaling == "longrope" else 0
            if len(factors) != num or not all(0 < each < math.inf for each in factors):
                raise ValueError(
                    f"{name}={factors} must be {num} positive numbers for rope_scaling="
                    f"{self.rope_scaling}: one for each turned pair under longrope, else none."
                )

    def _check_window(self) -> None:
        for name in ("global_every", "global_layers", "rope_local_base"):
            if getattr(self, name) and self.window is None:
                raise ValueError(
                    f"{name}={getattr(self, name)} must come with a window for the other layers; "
                    "set window."
                )
        if self.global_every is not None and not 2 <= self.global_every <= self.num_layers:
            raise ValueError(
                f"global_every={self.global_every} must be from 2 to num_layers={self.num_layers}; "
                "for layers that are all alike, set window only."
            )
        layers = self.global_layers
        if layers and (
            self.global_every is not None
            or list(layers) != sorted(set(layers))
            or not 0 <= layers[0] <= layers[-1] < self.num_layers
            or len(layers) == self.num_layers
        ):
            raise ValueError(
                f"global_layers={layers} must rise, be below num_layers={self.num_layers}, leave a "
                "layer with the window, and not come with global_every."
            )
