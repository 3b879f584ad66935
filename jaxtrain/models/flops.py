"""How many parameters a model has and how many FLOPs a trained token costs, in closed form.

Every part is named, so that a plan or an MFU can say what it counts. Does not import jax.
"""

from collections.abc import Mapping

from jaxtrain.models.config import ModelConfig


def matmul_params(config: ModelConfig) -> Mapping[str, int]:
    """Weights that multiply every token: attention and ffn projections of all layers, the head.

    Of routed experts those that a token goes to count, as everywhere here but in `num_params`. A
    tied head counts (its product costs the same), the embedding look-up does not. Padding of the
    vocabulary counts. Modules that predict further tokens count where they are trained, each with
    the head once more.
    """
    outputs = 1 if config.scalar_head else config.num_vocab_rows + _head_extra(config)
    head = config.d_model * outputs
    moe = config.num_expert_layers
    parts = {
        "attention": config.num_layers * _attention_weights(config),
        "ffn": _ffn_weights(config, config.num_layers - moe, moe),
        "head": head,
    }
    if config.trains_mtp:
        ffn = _ffn_weights(config, 0, 1) if moe else _ffn_weights(config, 1, 0)
        block = 2 * config.d_model**2 + _attention_weights(config) + ffn
        parts["further_tokens"] = config.num_mtp_layers * (block + head)
    return parts


def num_params(config: ModelConfig) -> int:
    """The exact number of trained parameters; a tied head is counted once."""
    return _num_params(config, config.num_experts or 0)


def num_active_params(config: ModelConfig) -> int:
    """Those that one token meets: all but the routed experts that it does not go to.

    Embedding and head count, as in what is published (46.7B and 12.9B of Mixtral 8x7B, say).
    """
    return _num_params(config, config.num_experts_per_token)


def _num_params(config: ModelConfig, num_experts: int) -> int:
    moe = config.num_expert_layers
    blocks = config.num_layers * _block(config) + moe * _experts(config, num_experts)
    blocks += (config.num_layers - moe) * _dense_ffn(config)
    of_mtp = _block(config) + 2 * config.d_model**2 + 3 * _norm(config)
    of_mtp += _experts(config, num_experts) if moe else _dense_ffn(config)
    return _ends(config) + blocks + config.num_mtp_layers * of_mtp


def _norm(config: ModelConfig) -> int:
    return 2 * config.d_model if config.norm == "layer" else config.d_model


def _ends(config: ModelConfig) -> int:
    """All but the blocks."""
    d, v, norm = config.d_model, config.num_vocab_rows, _norm(config)
    ends = d * v * (1 if config.tied_head or config.scalar_head else 2)
    ends += d if config.scalar_head else 0
    ends += 0 if config.norm_placement == "residual" else norm
    if config.num_positions is not None:
        ends += (config.num_positions + config.num_token_types) * d + norm
    return ends + (d * d + d + norm + v if config.masked_lm_head else 0)


def _block(config: ModelConfig) -> int:
    """A block without its feed-forward."""
    norms = (4 if config.norm_placement == "both" else 2) * _norm(config)
    return _attention_weights(config) + _attention_vectors(config) + norms


def _head_extra(config: ModelConfig) -> int:
    """Columns of the dense layer ahead of an encoder's head."""
    return config.d_model if config.masked_lm_head else 0


def _attention_weights(config: ModelConfig) -> int:
    """Matrices of one layer."""
    d, n, h, v = config.d_model, config.num_heads, config.head_dim, config.value_dim
    if config.kv_latent_dim is None:
        return 2 * d * (n + config.num_kv_heads) * h
    q, r, rope = config.q_latent_dim, config.kv_latent_dim, config.rope_dim
    queries = d * n * h if q is None else d * q + q * n * h
    return queries + d * (r + rope) + r * n * (h - rope + v) + n * v * d


def _attention_vectors(config: ModelConfig) -> int:
    """Norms, biases and sinks of one layer."""
    d, h, q, kv = config.d_model, config.head_dim, config.num_heads, config.num_kv_heads
    latents = (config.kv_latent_dim or 0) + (config.q_latent_dim or 0)
    norms = {"none": 0, "head": 2 * h, "all": (q + kv) * h}[config.qk_norm]
    biases = (q + 2 * kv) * h if config.attention_bias != "none" else 0
    biases += d if config.attention_bias == "all" else 0
    return latents + norms + biases + (q if config.attention_sinks else 0)


def _dense_ffn(config: ModelConfig) -> int:
    """Matrices and biases of one dense layer."""
    return _ffn(config, config.d_ff)


def _experts(config: ModelConfig, num_experts: int) -> int:
    """Those of one layer of `num_experts` routed experts, router and shared ones included."""
    num_biases = config.router_bias + config.router_selection_bias
    router = (config.num_experts or 0) * (config.d_model + num_biases)
    shared = config.num_shared_experts * config.expert_dim
    routed = num_experts * _ffn(config, config.expert_dim)
    return router + routed + (_ffn(config, shared) if shared else 0)


def _ffn(config: ModelConfig, width: int) -> int:
    num_up = 2 if config.is_gated else 1
    biases = num_up * width + config.d_model if config.ffn_bias else 0
    return (num_up + 1) * config.d_model * width + biases


def _ffn_weights(config: ModelConfig, num_dense: int, moe: int) -> int:
    """Matrices that a token meets in so many dense layers and layers with experts."""
    d = config.d_model
    num_matrices = 3 if config.is_gated else 2
    num_experts = config.num_experts_per_token + config.num_shared_experts
    widths = num_dense * config.d_ff + moe * num_experts * config.expert_dim
    return num_matrices * d * widths + moe * d * (config.num_experts or 0)


def train_flops_by_part(config: ModelConfig, seq_len: int) -> Mapping[str, float]:
    """FLOPs of forward and backward per token: weight matmuls by part, and the scores.

    A weight costs 2 FLOPs (multiply, add) forward and 4 backward (gradients of input and weight).
    `attention_scores` are QKᵀ and the product with V: 12 · N · H · S per layer (6 · N · S times the
    two head sizes where values have their own), where S is the mean number of visible keys: T for a
    bidirectional layer, T/2 for a causal one; with a window w ≤ T, causal w − w²/2T, bidirectional
    2w − w²/T. Left out: norms, RoPE, softmax, activations, experts that a token does not go to,
    the optimizer, and whatever remat computes twice.
    """
    weights = {name: 6.0 * count for name, count in matmul_params(config).items()}
    per_key = 6.0 * config.num_heads * (config.head_dim + config.value_dim)
    num_keys = sum(_mean_visible(config, seq_len, layer) for layer in range(config.num_layers))
    if config.trains_mtp:
        num_keys += config.num_mtp_layers * seq_len / 2
    return {**weights, "attention_scores": per_key * num_keys}


def train_flops_per_token(config: ModelConfig, seq_len: int) -> float:
    """6 · N_matmul + 12 · L · N · H · T · (½ if causal): the sum of `train_flops_by_part`.

    This is the "model FLOPs" of an MFU (Chowdhery et al. 2022, arXiv 2204.02311, appendix B), with
    the causal half counted once and the head counted, the embedding look-up not.
    """
    return sum(train_flops_by_part(config, seq_len).values())


def adapted_flops_per_token(config: ModelConfig, seq_len: int, num_trained: int) -> float:
    """The same where the model is frozen but for `num_trained` parameters of low-rank updates.

    A frozen weight has no gradient: 4 FLOPs instead of 6.
    """
    frozen = sum(matmul_params(config).values())
    return train_flops_per_token(config, seq_len) - 2.0 * frozen + 6.0 * num_trained


def _mean_visible(config: ModelConfig, seq_len: int, layer: int) -> float:
    window = min(config.layer_window(layer) or seq_len, seq_len)
    causal = window - window**2 / (2 * seq_len)
    return 2 * causal if config.bidirectional else causal
