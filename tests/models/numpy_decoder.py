"""The decoder once more, in float64 NumPy, one document at a time: the reference of the tests."""

import numpy as np

from jaxtrain.models.config import ModelConfig


def logits(params, config: ModelConfig, ids, positions=None) -> np.ndarray:
    """(T, V) logits of one document."""
    p = _float64(params)
    positions = np.arange(len(ids)) if positions is None else positions
    x = p["embedding_VD"][np.asarray(ids)]
    x = x * np.sqrt(config.d_model) if config.scale_embedding else x
    for layer in range(config.num_layers):
        block = _layer(p["blocks"], layer)
        x = _around(
            block,
            "attention",
            config,
            x,
            lambda h, block=block, layer=layer: _attention(
                block["attention"], config, h, positions, layer
            ),
        )
        x = _around(block, "ffn", config, x, lambda h, block=block: _ffn(block["ffn"], config, h))
    x = _rms(x, p["final_norm"]["scale"], config)
    out = x @ (p["embedding_VD"].T if config.tied_head else p["w_head_DV"])
    return _capped(out[:, : config.vocab_size], config.logit_softcap)


def _around(block, name, config, x, sub_layer):
    """x + post_norm(sub_layer(pre_norm(x))), with the norms that there are."""
    pre, post = block.get(f"{name}_norm"), block.get(f"{name}_post_norm")
    out = sub_layer(_rms(x, pre["scale"], config) if pre else x)
    return x + (_rms(out, post["scale"], config) if post else out)


def nll_sum(logits_TV: np.ndarray, targets) -> float:
    """Summed negative log-likelihood, nats."""
    top = logits_TV.max(-1, keepdims=True)
    logprobs = logits_TV - top - np.log(np.exp(logits_TV - top).sum(-1, keepdims=True))
    return float(-logprobs[np.arange(len(targets)), targets].sum())


def rotated(x_TNH: np.ndarray, positions, config: ModelConfig, base=None) -> np.ndarray:
    """Unscaled or linearly scaled RoPE: each pair (i, i + H/2) is a complex number to be turned."""
    half = int(config.head_dim * config.rope_frac) // 2
    base = base or config.rope_base
    frequency = base ** (-np.arange(half) / half) / config.rope_factor
    turn = np.exp(1j * np.asarray(positions)[:, None] * frequency)[:, None, :]
    z = (x_TNH[..., :half] + 1j * x_TNH[..., half : 2 * half]) * turn
    return np.concatenate([z.real, z.imag, x_TNH[..., 2 * half :]], -1)


def _attention(p, config, x, positions, layer):
    def heads(name, num):
        out = np.einsum("td,dnh->tnh", x, p[f"w_{name}_D{num}H"])
        return out if config.attention_bias == "none" else out + p[f"b_{name}_{num}H"]

    q, k, v = heads("q", "N"), heads("k", "K"), heads("v", "K")
    if config.qk_norm != "none":
        q, k = _rms(q, p["q_norm"]["scale"], config), _rms(k, p["k_norm"]["scale"], config)
    is_global = (config.global_every and (layer + 1) % config.global_every == 0) or (
        layer in config.global_layers
    )
    base = None if is_global or not config.window else config.rope_local_base
    q, k = rotated(q, positions, config, base), rotated(k, positions, config, base)
    group = config.num_heads // config.num_kv_heads
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    scores = _capped(
        np.einsum("tnh,snh->nts", q, k) * (config.attention_scale or config.head_dim**-0.5),
        config.attention_softcap,
    )
    ahead = np.arange(len(x))[None, :] - np.arange(len(x))[:, None]
    visible = np.ones_like(ahead, bool) if config.bidirectional else ahead <= 0
    if config.window and not is_global:
        visible &= np.abs(ahead) < config.window
    weights = np.where(visible, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("nts,snh,nhd->td", weights, v, p["w_o_NHD"])
    return out + p["b_o_D"] if config.attention_bias == "all" else out


def _ffn(p, config, x):
    def linear(x, kind, letters):
        out = x @ p[f"w_{kind}_{letters}"]
        return out + p[f"b_{kind}_{letters[1]}"] if config.ffn_bias else out

    up = linear(x, "up", "DF")
    if config.activation == "relu2":
        hidden = np.maximum(up, 0) ** 2
    else:
        gate = linear(x, "gate", "DF")
        if config.activation == "swiglu":
            hidden = gate / (1 + np.exp(-gate)) * up
        else:
            inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
            hidden = gate * 0.5 * (1 + np.tanh(inner)) * up
    return linear(hidden, "down", "FD")


def _rms(x, scale, config):
    over = tuple(range(-scale.ndim, 0))
    scale = 1 + scale if config.norm_offset else scale
    return x / np.sqrt((x * x).mean(over, keepdims=True) + config.norm_eps) * scale


def _capped(x, cap):
    return x if cap is None else cap * np.tanh(x / cap)


def _float64(tree):
    return {
        key: _float64(value) if isinstance(value, dict) else np.asarray(value, np.float64)
        for key, value in tree.items()
    }


def _layer(tree, index):
    return {
        key: _layer(value, index) if isinstance(value, dict) else value[index]
        for key, value in tree.items()
    }
