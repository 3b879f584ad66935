"""How many parameters a model has and how many FLOPs a trained token costs, in closed form.

Every part is named, so that a plan or an MFU can say what it counts. Does not import jax.
"""

from collections.abc import Mapping

from jaxtrain.models.config import ModelConfig


def matmul_params(config: ModelConfig) -> Mapping[str, int]:
    """Weights that multiply every token: attention and ffn projections of all layers, the head.

    A tied head counts here (its product costs the same), the embedding look-up does not. Padding of
    the vocabulary counts.
    """
    heads = config.num_heads + config.num_kv_heads
    num_ffn_matrices = 2 if config.activation == "relu2" else 3
    return {
        "attention": config.num_layers * 2 * config.d_model * heads * config.head_dim,
        "ffn": config.num_layers * num_ffn_matrices * config.d_model * config.d_ff,
        "head": config.d_model * config.num_vocab_rows,
    }


def num_params(config: ModelConfig) -> int:
    """The exact number of trained parameters; a tied head is counted once."""
    d, f, h, q, kv = (
        config.d_model,
        config.d_ff,
        config.head_dim,
        config.num_heads,
        config.num_kv_heads,
    )
    num_up_matrices = 1 if config.activation == "relu2" else 2
    norms = (4 if config.norm_placement == "both" else 2) * d
    norms += {"none": 0, "head": 2 * h, "all": (q + kv) * h}[config.qk_norm]
    biases = (
        ((q + 2 * kv) * h if config.attention_bias != "none" else 0)
        + (d if config.attention_bias == "all" else 0)
        + (num_up_matrices * f + d if config.ffn_bias else 0)
    )
    embedding = 0 if config.tied_head else config.num_vocab_rows * d
    return (
        sum(matmul_params(config).values()) + embedding + d + config.num_layers * (norms + biases)
    )


def train_flops_by_part(config: ModelConfig, seq_len: int) -> Mapping[str, float]:
    """FLOPs of forward and backward per token: weight matmuls by part, and the scores.

    A weight costs 2 FLOPs (multiply, add) forward and 4 backward (gradients of input and weight).
    `attention_scores` are QKᵀ and the product with V: 12 · N · H · S per layer, where S is the mean
    number of visible keys: T for a bidirectional layer, T/2 for a causal one; with a window
    w ≤ T, causal w − w²/2T, bidirectional 2w − w²/T. Left out: norms, RoPE, softmax, activations,
    the optimizer, and whatever remat computes twice.
    """
    weights = {name: 6.0 * count for name, count in matmul_params(config).items()}
    per_key = 12.0 * config.num_heads * config.head_dim
    num_keys = sum(_mean_visible(config, seq_len, layer) for layer in range(config.num_layers))
    return {**weights, "attention_scores": per_key * num_keys}


def train_flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """6 · N_matmul + 12 · L · N · H · T · (½ if causal): the sum of `train_flops_by_part`.

    This is the "model FLOPs" of an MFU (Chowdhery et al. 2022, arXiv 2204.02311, appendix B), with
    the causal half counted once and the head counted, the embedding look-up not.
    """
    return sum(train_flops_by_part(config, seq_len).values())


def _mean_visible(config: ModelConfig, seq_len: int, layer: int) -> float:
    window = min(config.layer_window(layer) or seq_len, seq_len)
    causal = window - window**2 / (2 * seq_len)
    return 2 * causal if config.bidirectional else causal
