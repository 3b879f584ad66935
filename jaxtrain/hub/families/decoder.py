"""What the decoder families have in common: sizes, layer types, and the tables of weights."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxtrain.hub.fields import Fields
from jaxtrain.hub.rope_fields import write_rope
from jaxtrain.hub.weights import Weight
from jaxtrain.models.config import ModelConfig

_MOST_LAYERS = 10_000  # more are no model but a mistake
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_sizes(
    fields: Fields, *, eps: float = 1e-6, tied: bool = False, num_kv_heads: int | None = None
) -> dict[str, Any]:
    """Sizes, eps and tied head.

    Args:
      eps, tied, num_kv_heads: the family's defaults; of the last, None: as many as query heads,
        which is also what null means.
    """
    heads, width = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    kv_heads = heads if "num_key_value_heads" in fields.values else num_kv_heads or heads
    return {
        "vocab_size": fields.integer("vocab_size"),
        "num_layers": fields.integer("num_hidden_layers", most=_MOST_LAYERS),
        "d_model": width,
        "num_heads": heads,
        "num_kv_heads": fields.integer("num_key_value_heads", kv_heads),
        "head_dim": fields.integer("head_dim", width // heads or 2),
        "d_ff": fields.integer("intermediate_size"),
        "norm_eps": fields.number("rms_norm_eps", eps),
        "tied_head": fields.flag("tie_word_embeddings", tied),
        "context_len": fields.integer("max_position_embeddings", None),
    }


def write_sizes(config: ModelConfig, **rope: Any) -> dict[str, Any]:
    """The fields that `read_sizes` reads, and those of RoPE (`rope`: in another form)."""
    return {
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.d_ff,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_head,
        **(rope or write_rope(config)),
    }


def read_silu(fields: Fields, name: str = "hidden_act") -> dict[str, Any]:
    """The activation of the families with SwiGLU."""
    fields.only(name, "silu", "swish", why="the feed-forward of this family is SwiGLU")
    return {"activation": "swiglu"}


def read_gelu_tanh(fields: Fields) -> dict[str, Any]:
    """The activation of Gemma: `hidden_act` says "gelu" in its files and is not what counts."""
    name = "hidden_activation"
    allowed = ("gelu_pytorch_tanh", "gelu_new")
    fields.only(name, *allowed, why="the feed-forward of this family is GeGLU with tanh")
    fields.without_effect("hidden_act")
    return {"activation": "geglu"}


def read_windows(fields: Fields, window: int | None, types: Sequence[str], num_layers: int) -> dict:
    """`window` and which layers ignore it.

    Args:
      types: of the layers where the file has no `layer_types`.
    """
    types = fields.sequence("layer_types", types)
    unknown = sorted(set(map(str, types)) - {_FULL, _SLIDING})
    if unknown or len(types) != num_layers:
        fields.problems.append(
            f"layer_types must be {num_layers} of {_FULL} and {_SLIDING}, not {len(types)}"
            + (f" with {', '.join(unknown)}" if unknown else "")
        )
        return {}
    full = tuple(layer for layer, each in enumerate(types) if each == _FULL)
    if len(full) == num_layers or window is None:
        if window is None and len(full) < num_layers:
            fields.problems.append("sliding_window is missing, but layer_types has sliding layers")
        return {"window": None}
    every = full[0] + 1 if full else 0
    if every > 1 and full == tuple(range(every - 1, num_layers, every)):
        return {"window": window, "global_every": every}
    return {"window": window, "global_layers": full}


def write_layer_types(config: ModelConfig) -> list[str]:
    """`layer_types` of a config."""
    windows = map(config.layer_window, range(config.num_layers))
    return [_FULL if window is None else _SLIDING for window in windows]


def ends(config: ModelConfig) -> list[Weight]:
    """Embedding, last norm and head."""
    table = [
        Weight("model.embed_tokens.weight", "V D", "embedding_VD"),
        Weight("model.norm.weight", "D", "final_norm.scale"),
    ]
    if config.scalar_head:
        return [*table, Weight("score.weight", "() D", "w_score_D")]
    head = Weight("lm_head.weight", "V D", "w_head_DV")
    return table if config.tied_head else [*table, head]


class Stack(NamedTuple):
    """Where the layers of one stack of blocks are, in their names and in ours."""

    theirs: str
    ours: str


BLOCKS = Stack("model.layers.{L}.", "blocks.")


def stacks(config: ModelConfig) -> dict[str, Stack]:
    """The stacks of a model that has several, by name; theirs count their layers through."""
    return {
        name: Stack(f"model.layers.{{L+{layers.start}}}.", f"{name}.")
        for name, layers in config.block_stacks.items()
    }


def norms(names: Mapping[str, str], of: Stack = BLOCKS) -> list[Weight]:
    """Norms of a block: theirs by ours."""
    return [
        Weight(f"{of.theirs}{theirs}.weight", "D", f"{of.ours}{ours}.scale")
        for ours, theirs in names.items()
    ]


_PRE_NORMS = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
PRE_NORMS = norms(_PRE_NORMS)


def pre_norms(of: Stack) -> list[Weight]:
    """Those that are named as in Llama."""
    return norms(_PRE_NORMS, of)


def attention(config: ModelConfig, stack: Stack = BLOCKS) -> list[Weight]:
    """Projections, biases and norms of queries and keys."""
    of, ours = f"{stack.theirs}self_attn.", f"{stack.ours}attention."
    table = [
        Weight(f"{of}q_proj.weight", "(N H) D", f"{ours}w_q_DNH"),
        Weight(f"{of}k_proj.weight", "(K H) D", f"{ours}w_k_DKH"),
        Weight(f"{of}v_proj.weight", "(K H) D", f"{ours}w_v_DKH"),
        Weight(f"{of}o_proj.weight", "D (N H)", f"{ours}w_o_NHD"),
    ]
    if config.attention_bias != "none":
        table += [
            Weight(f"{of}q_proj.bias", "(N H)", f"{ours}b_q_NH"),
            Weight(f"{of}k_proj.bias", "(K H)", f"{ours}b_k_KH"),
            Weight(f"{of}v_proj.bias", "(K H)", f"{ours}b_v_KH"),
        ]
    if config.attention_bias == "all":
        table.append(Weight(f"{of}o_proj.bias", "D", f"{ours}b_o_D"))
    if config.qk_norm != "none":
        q, k = ("H", "H") if config.qk_norm == "head" else ("(N H)", "(K H)")
        table += [
            Weight(f"{of}q_norm.weight", q, f"{ours}q_norm.scale"),
            Weight(f"{of}k_norm.weight", k, f"{ours}k_norm.scale"),
        ]
    return table


def ffn(config: ModelConfig, stack: Stack = BLOCKS) -> list[Weight]:
    """The gated feed-forward."""
    of, ours = f"{stack.theirs}mlp.", f"{stack.ours}ffn."
    table = [
        Weight(f"{of}gate_proj.weight", "F D", f"{ours}w_gate_DF"),
        Weight(f"{of}up_proj.weight", "F D", f"{ours}w_up_DF"),
        Weight(f"{of}down_proj.weight", "D F", f"{ours}w_down_FD"),
    ]
    if config.ffn_bias:
        table += [
            Weight(f"{of}gate_proj.bias", "F", f"{ours}b_gate_F"),
            Weight(f"{of}up_proj.bias", "F", f"{ours}b_up_F"),
            Weight(f"{of}down_proj.bias", "D", f"{ours}b_down_D"),
        ]
    return table


def experts(
    router: str, names: Sequence[str], stack: Stack = BLOCKS, shared: str | None = None
) -> list[Weight]:
    """Router and routed experts.

    Args:
      router: where a layer has its matrix.
      names: the gate, up and down matrix of one expert, `{E}` its number.
      shared: the same of the shared experts, with `{}` for gate, up and down.
    """
    ours = f"{stack.ours}ffn."
    gate, up, down = (f"{stack.theirs}{name}.weight" for name in names)
    table = [
        Weight(f"{stack.theirs}{router}.weight", "E D", f"{ours}router.w_DE"),
        Weight(gate, "F D", f"{ours}w_gate_EDF"),
        Weight(up, "F D", f"{ours}w_up_EDF"),
        Weight(down, "D F", f"{ours}w_down_EFD"),
    ]
    if shared is not None:
        of = f"{stack.theirs}{shared}."
        table += [
            Weight(f"{of}gate_proj.weight", "F D", f"{ours}shared.w_gate_DF"),
            Weight(f"{of}up_proj.weight", "F D", f"{ours}shared.w_up_DF"),
            Weight(f"{of}down_proj.weight", "D F", f"{ours}shared.w_down_FD"),
        ]
    return table


#: Of one expert in most families.
EXPERT = tuple(f"mlp.experts.{{E}}.{name}_proj" for name in ("gate", "up", "down"))


def read_num_experts(fields: Fields, *names: str) -> int:
    """Routed experts, under the first of these names that the file has."""
    given = [name for name in names if fields.values.get(name) is not None]
    for name in given[1:]:
        fields.only(name, fields.values[given[0]], why=f"it repeats {given[0]}")
    return fields.integer(given[0] if given else names[0])


def ignore_router_losses(fields: Fields) -> None:
    """What a config.json says of losses that are no part of the model."""
    fields.without_effect("router_aux_loss_coef", "output_router_logits", "aux_loss_alpha")
    fields.without_effect("seq_aux", "ep_size")
