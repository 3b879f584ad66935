import contextlib
import dataclasses
import json

import pytest

from jaxtrain.hub import families
from jaxtrain.hub.families import llama
from jaxtrain.hub.family import other_function
from jaxtrain.hub.fields import WITHOUT_EFFECT
from jaxtrain.models.config import ModelConfig
from tests.hub.tiny import FIELDS

CONFIG = llama.FAMILY.read(FIELDS)


def test_every_field_of_a_config_is_used_or_refused():
    """Each field of the file changed: another config, or an error."""
    others = {"architectures", "model_type", "torch_dtype", "bos_token_id", "eos_token_id"}
    for name, value in FIELDS.items():
        if name in others:
            continue
        changed = "gelu" if isinstance(value, str) else not value if value is False else value * 2
        if name == "hidden_act":
            with pytest.raises(ValueError, match="hidden_act='gelu' is not supported"):
                llama.FAMILY.read({**FIELDS, name: changed})
        else:
            assert llama.FAMILY.read({**FIELDS, name: changed}) != CONFIG, name


#: Sizes that the defaults of `transformers` do not make a consistent model with.
OWN_SIZES = {
    "qwen3_moe": {"num_experts": 8},
    "deepseek_v2": {
        **{"num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2},
        **{"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1},
    },
    "deepseek_v3": {"num_key_value_heads": 4, "num_experts_per_tok": 2},
    "bert": {"num_key_value_heads": ...},
}
#: Fields that change nothing: of losses and dropout, or since `layer_types` and the like say it.
_LOSSES = {"output_router_logits", "router_aux_loss_coef"}
_WINDOWS = {"max_window_layers", "sliding_window", "use_sliding_window"}
WITHOUT_EFFECT_IN = {
    "qwen2": _WINDOWS,
    "qwen3": _WINDOWS,
    "phi3": {"original_max_position_embeddings"},  # without a scaling of RoPE
    "gemma3_text": {"_sliding_window_pattern"},
    "mixtral": _LOSSES,
    "qwen3_moe": _LOSSES | {"sliding_window"},  # without use_sliding_window
    "deepseek_v2": _LOSSES,
    "deepseek_v3": _LOSSES,
    "gpt_oss": _LOSSES,
    "bert": {"attention_probs_dropout_prob", "classifier_dropout"},
}


def others(value):
    """What may stand in a field instead of its value."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value * 2 + 1]
    if isinstance(value, str):
        return ["other"]
    if isinstance(value, list):
        return [[*value, "x"]]
    if isinstance(value, dict):
        return [{**value, "x": 1}]
    return [7, 0.5, True, "other", [1], {"x": 1}]


@pytest.mark.reference
@pytest.mark.parametrize("model_type", families.BY_MODEL_TYPE)
def test_every_field_of_transformers_is_used_or_refused(model_type):
    """Each field that its config class writes, with another value: another config, or an error."""
    transformers = pytest.importorskip("transformers")
    family = families.BY_MODEL_TYPE[model_type]
    sizes = {"vocab_size": 48, "num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 40}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, **OWN_SIZES.get(model_type, {})}
    given = {name: size for name, size in sizes.items() if size is not ...}
    written = transformers.CONFIG_MAPPING[model_type](**given).to_json_string(use_diff=False)
    fields = {**json.loads(written), "architectures": [family.architecture]}
    config = family.read(fields)
    silent = set()
    for name, value in fields.items():
        for other in others(value):
            with contextlib.suppress(ValueError):
                if family.read({**fields, name: other}) == config:
                    silent.add(name)
    assert silent - WITHOUT_EFFECT <= WITHOUT_EFFECT_IN.get(model_type, set())


def test_an_unknown_field_is_refused_by_its_name():
    with pytest.raises(ValueError, match=r"a/config\.json: .*attention_sinks=4 is not known"):
        llama.FAMILY.read({**FIELDS, "attention_sinks": 4}, "a/config.json")


ODD = [None, 0, -1, 1.5, 10**30, 1e-300, "", "x", [], [None], {}, {"type": 3}, True]
FIELDS_OF_ANY = {
    *("sliding_window", "layer_types", "rope_scaling", "rope_parameters", "partial_rotary_factor"),
    *("query_pre_attn_scalar", "original_max_position_embeddings", "sliding_window_pattern"),
    *("final_logit_softcapping", "max_window_layers", "use_sliding_window", "architectures"),
}


@pytest.mark.parametrize("model_type", families.BY_MODEL_TYPE)
def test_whatever_a_file_says_is_a_config_or_a_readable_error(model_type):
    family = families.BY_MODEL_TYPE[model_type]
    sizes = {k: v for k, v in FIELDS.items() if k not in ("architectures", "hidden_act")}
    for name in sorted({*sizes, *FIELDS_OF_ANY}):
        for value in ODD:
            with contextlib.suppress(ValueError):
                family.read({**sizes, name: value, "use_sliding_window": True})
            scaling = {"rope_type": "longrope", "short_factor": value, "factor": value}
            for kind in ("longrope", "yarn", "dynamic", "llama3", "linear"):
                with contextlib.suppress(ValueError):
                    family.read({**sizes, "rope_scaling": {**scaling, "rope_type": kind}})


def test_values_that_make_no_model_are_refused():
    with pytest.raises(ValueError, match="num_heads=2 must be a multiple of num_kv_heads=3"):
        llama.FAMILY.read({**FIELDS, "num_key_value_heads": 3})


@pytest.mark.parametrize(
    "changes",
    [
        {"qk_norm": "head"},
        {"norm_placement": "post"},
        {"attention_scale": 0.3},
        {"activation": "relu2"},
        {"window": 4},
        {"scale_embedding": True},
        {"logit_softcap": 3.0},
        {"bidirectional": True},
        {"attention_bias": "qkv"},
    ],
    ids=str,
)
def test_what_a_family_cannot_express_is_refused_by_name(changes):
    (name,) = changes
    with pytest.raises(ValueError, match=f"a llama model cannot express {name}="):
        llama.FAMILY.write(dataclasses.replace(CONFIG, **changes))


def test_what_its_own_reader_refuses_is_not_expressed():
    with pytest.raises(ValueError, match=r"cannot express .*partial_rotary_factor=0\.5 must be 1"):
        llama.FAMILY.write(dataclasses.replace(CONFIG, rope_frac=0.5))


def test_how_to_compute_and_to_train_is_nothing_to_express():
    ours = {"vocab_multiple": 64, "remat": "full", "attention": "xla", "dropout": 0.1}
    assert llama.FAMILY.cannot_express(dataclasses.replace(CONFIG, **ours)) == []


def test_how_experts_are_balanced_and_reached_is_nothing_to_express():
    experts = dataclasses.replace(CONFIG, num_experts=4, num_experts_per_token=2, tied_head=False)
    ours = {
        "router_balance_weight": 0.1, "router_z_weight": 0.1, "router_balance_over": "batch",
        "expert_dispatch": "capacity", "expert_capacity_factor": 2.0,
    }  # fmt: skip
    assert other_function(experts, dataclasses.replace(experts, **ours)) == []


def test_the_default_scale_is_the_same_function():
    explicit = dataclasses.replace(CONFIG, attention_scale=CONFIG.head_dim**-0.5)
    assert other_function(CONFIG, explicit) == []
    assert other_function(CONFIG, dataclasses.replace(CONFIG, norm_eps=1e-3)) == [
        "norm_eps=1e-05 (but 0.001)"
    ]


@pytest.mark.parametrize(
    ("changes", "model_type"),
    [
        ({}, "llama"),
        ({"window": 4}, "mistral"),
        ({"attention_bias": "qkv"}, "qwen2"),
        ({"attention_bias": "qkv", "window": 4, "global_layers": (0,)}, "qwen2"),
        ({"qk_norm": "head"}, "qwen3"),
        ({"qk_norm": "all", "norm_placement": "post"}, "olmo2"),
        ({"rope_frac": 0.5}, "phi3"),
    ],
    ids=str,
)
def test_an_export_finds_a_family_that_computes_the_same(changes, model_type):
    config = dataclasses.replace(CONFIG, **changes)
    family = families.choose(config)
    assert family.model_type == model_type
    assert other_function(config, family.read(family.write(config))) == []


def test_a_model_that_no_family_computes_is_refused_with_the_reasons():
    config = dataclasses.replace(CONFIG, activation="relu2")
    with pytest.raises(
        ValueError, match=r"no Hugging Face family .* llama cannot express activation="
    ):
        families.choose(config)


def test_an_unknown_model_type_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"model_type='rwkv' is not supported: known are llama, m"):
        families.family_of({"model_type": "rwkv"})
    with pytest.raises(ValueError, match="it has a vision tower"):
        families.family_of({"model_type": "gemma3"})


def test_a_family_without_a_context_length_says_so():
    config = dataclasses.replace(CONFIG, context_len=None)
    assert "context_len=None" in llama.FAMILY.cannot_express(config)[0]
    assert isinstance(config, ModelConfig)
