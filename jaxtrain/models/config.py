"""`ModelConfig`: the shape of a model and the choices that define its function.

One decoder covers the families (Llama, Mistral, Qwen, Gemma, Phi-3, OLMo-2, encoders) through these
fields; `hub/families/` says which fields make which. Does not import jax. Counts that follow from a
config are in `flops.py`.
"""

import dataclasses
import math
from collections.abc import Mapping

from jaxtrain.models import config_checks
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
    "num_experts_per_token",
    "num_router_groups",
    "num_router_groups_per_token",
    "router_scale",
    "expert_capacity_factor",
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
    "num_experts",
    "d_ff_expert",
    "kv_latent_dim",
    "q_latent_dim",
    "rope_head_dim",
    "value_head_dim",
    "num_positions",
)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Section `model` of the config."""

    vocab_size: int = option(doc="Token ids, special tokens included.")
    num_layers: int = option(doc="Blocks of attention and feed-forward.")
    d_model: int = option(doc="Width of the residual stream.")
    num_heads: int = option(doc="Query heads.")
    num_kv_heads: int = option(doc="Key/value heads; divides num_heads (grouped queries if fewer).")
    head_dim: int = option(doc="Size of one head; even.")
    d_ff: int = option(doc="Feed-forward width (of dense layers, where d_ff_expert is given).")
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
        "Feed-forward kind: swiglu, geglu and clamped_swiglu (GPT-OSS) have a gate matrix, relu2 "
        "(squared ReLU) and gelu (exact, BERT) have none.",
        choices=("swiglu", "geglu", "clamped_swiglu", "relu2", "gelu"),
    )
    tied_head: bool = option(False, "The output head is the embedding transposed.")
    scale_embedding: bool = option(
        False,
        "Embeddings are multiplied by sqrt(d_model) where they enter the first block (Gemma).",
    )
    bidirectional: bool = option(False, "Every token sees its whole segment (encoder).")
    num_positions: int | None = option(
        None,
        "Learned embeddings of so many positions and a norm of the embeddings' sum, instead of "
        "RoPE (BERT).",
    )
    num_token_types: int = option(
        0, "Learned embeddings of token types; every token has the first (BERT)."
    )
    masked_lm_head: bool = option(
        False, "A dense layer with GELU and a norm ahead of the head, and a bias behind (BERT)."
    )
    scalar_head: bool = option(
        False, "A score of each position instead of the vocabulary's head (reward models)."
    )
    norm: str = option(
        "rms",
        "Kind of the norms: RMSNorm, or LayerNorm with biases (BERT).",
        choices=("rms", "layer"),
    )
    norm_eps: float = option(1e-5, "Added to the mean square (or variance) in norms.")
    norm_offset: bool = option(
        False, "RMSNorms multiply by 1 + scale, and scales start at 0 (Gemma)."
    )
    norm_placement: str = option(
        "pre",
        "Where a sub-layer has its norm: on its input (pre), on its output before it joins the "
        "residual (post, OLMo-2), on both (Gemma), or on the sum of both (residual, BERT; there is "
        "no final norm then).",
        choices=("pre", "post", "both", "residual"),
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
    attention_sinks: bool = option(
        False, "Each head has a learned score that takes part in its softmax alone (GPT-OSS)."
    )
    ffn_bias: bool = option(False, "Bias of the feed-forward projections.")
    dropout: float = option(0.0, "Probability of zeroing what each sub-layer adds to the residual.")

    num_experts: int | None = option(
        None, "Routed experts of a layer (mixture of experts); None: every layer is dense."
    )
    num_experts_per_token: int = option(1, "Routed experts that a token goes to.")
    d_ff_expert: int | None = option(None, "Feed-forward width of one expert; None: d_ff.")
    num_shared_experts: int = option(
        0, "Experts that every token goes to besides, as one feed-forward of their joint width."
    )
    num_dense_layers: int = option(
        0, "First layers that have the dense feed-forward instead of experts."
    )
    router_scores: str = option(
        "softmax",
        "How router logits become scores: softmax over all experts, or a sigmoid of each.",
        choices=("softmax", "sigmoid"),
    )
    router_normalize: bool = option(
        True, "A token's chosen scores are divided by their sum to be its weights."
    )
    router_scale: float = option(1.0, "Factor of the weights after that (routed scaling).")
    router_bias: bool = option(False, "Learned bias of the router logits (GPT-OSS).")
    router_selection_bias: bool = option(
        False,
        "Bias of the scores in the choice of experts alone, not in their weights (DeepSeek-V3).",
    )
    router_bias_rate: float = option(
        0.0,
        "The selection bias of an expert moves by this much after each update, towards an even "
        "load (aux-loss-free balancing; DeepSeek-V3: 0.001).",
        resumable=True,
    )
    router_balance_weight: float = option(
        0.0,
        "Weight of each layer's balance loss, 1 where loads are even (Switch: 0.01; DeepSeek-V3 "
        "by rows: 0.0001).",
        resumable=True,
    )
    router_balance_over: str = option(
        "row",
        "What the balance loss evens out: the loads of each row, or of the whole batch, which "
        "leaves experts free to specialise but costs one more forward pass under accumulation.",
        choices=("row", "batch"),
        resumable=True,
    )
    router_z_weight: float = option(
        0.0, "Weight of each layer's router z-loss (ST-MoE: 0.001).", resumable=True
    )
    expert_dispatch: str = option(
        "dense",
        "How tokens reach their experts in training: dense computes every expert on every token; "
        "capacity drops what an expert has no place for in a row, and counts it (else dense); "
        "dropless computes just what was chosen.",
        choices=("dense", "capacity", "dropless"),
        resumable=True,
    )
    expert_capacity_factor: float = option(
        1.25, "capacity: places of an expert in a row, in terms of an even load.", resumable=True
    )
    num_router_groups: int = option(
        1, "Groups of neighbouring experts for node-limited routing; 1: off."
    )
    num_router_groups_per_token: int = option(
        1,
        "Groups that a token's experts may come from, the best by their best expert's score, or "
        "under sigmoid scores by the sum of their best two.",
    )

    num_mtp_layers: int = option(
        0, "Modules behind the model that predict one further token each (DeepSeek-V3)."
    )
    mtp_weight: float = option(
        0.3,
        "Weight of the mean of their losses beside the model's own in pre-training and fine-tuning "
        "(DeepSeek-V3: 0.3, then 0.1); 0: nothing trains them.",
        resumable=True,
    )
    mtp_weight_changes: tuple[tuple[int, float], ...] = option(
        (), "Pairs (step, mtp_weight): the weight from that applied update on.", resumable=True
    )

    kv_latent_dim: int | None = option(
        None,
        "Width of the latent that keys and values come from (MLA, arXiv 2405.04434); None: "
        "grouped-query attention.",
    )
    q_latent_dim: int | None = option(
        None, "MLA: width of the latent that queries come from; None: straight from the input."
    )
    rope_head_dim: int | None = option(
        None,
        "MLA: the last dimensions of a query/key head, which RoPE turns and heads share in "
        "their key.",
    )
    value_head_dim: int | None = option(
        None, "MLA: size of a value head; None: head_dim less rope_head_dim."
    )

    rope_base: float = option(10_000.0, "Base of the rotary wavelengths (theta).")
    rope_local_base: float | None = option(
        None, "Base of the layers with a window, never scaled (Gemma 3); None: as the others."
    )
    rope_interleaved: bool = option(
        False, "RoPE turns dimensions 2i and 2i + 1 together (DeepSeek) instead of i and i + H/2."
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
        choices=("auto", "cudnn", "pallas", "chunked", "xla"),
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
        config_checks.check(self)
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
        return self.rope_head_dim or int(self.head_dim * self.rope_frac)

    @property
    def value_dim(self) -> int:
        """Size of a value head."""
        if self.kv_latent_dim is None:
            return self.head_dim
        return self.value_head_dim or self.head_dim - self.rope_dim

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward has a gate matrix."""
        return self.activation not in ("relu2", "gelu")

    @property
    def expert_dim(self) -> int:
        """Feed-forward width of one expert."""
        return self.d_ff_expert or self.d_ff

    @property
    def num_expert_layers(self) -> int:
        """Layers with experts."""
        return 0 if self.num_experts is None else self.num_layers - self.num_dense_layers

    @property
    def trains_mtp(self) -> bool:
        """Whether there are modules that predict further tokens, and they ever have a weight."""
        weights = (self.mtp_weight, *(weight for _, weight in self.mtp_weight_changes))
        return self.num_mtp_layers > 0 and any(weights)

    def layer_window(self, layer: int) -> int | None:
        """The window of layer 0, 1, …: with global_every=k, layers k-1, 2k-1, … have none."""
        is_kth = self.global_every is not None and (layer + 1) % self.global_every == 0
        return None if is_kth or layer in self.global_layers else self.window

    @property
    def block_stacks(self) -> Mapping[str, range]:
        """The layers of each stack of blocks with the same parameters, by the stack's name."""
        first = self.num_dense_layers
        dense = {"dense_blocks": range(first)} if first else {}
        return {**dense, "blocks": range(first, self.num_layers)}

    def layer_period(self, layers: range | None = None) -> int:
        """After how many of `layers` (None: all) windows repeat; their number if they never do."""
        layers = range(self.num_layers) if layers is None else layers
        windows = [self.layer_window(layer) for layer in layers]
        periods = range(1, len(layers))
        repeats = (p for p in periods if windows[p:] == windows[: len(layers) - p])
        return next(repeats, len(layers))
