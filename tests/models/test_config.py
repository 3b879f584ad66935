import dataclasses

import pytest

from jaxtrain.models.config import SAVEABLE, ModelConfig

SMALL = ModelConfig(
    vocab_size=64, num_layers=6, d_model=32, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_heads": 3}, "num_heads=4 must be a multiple of num_kv_heads=3"),
        ({"head_dim": 7}, "head_dim=7 must be even"),
        ({"d_ff": 0}, "d_ff=0 must be > 0"),
        ({"num_layers": 0}, "num_layers=0 must be > 0"),
        ({"norm_eps": float("nan")}, "norm_eps=nan must be finite"),
        ({"window": 0}, "window=0 must be > 0, or None for off"),
        ({"logit_softcap": -1.0}, "logit_softcap=-1.0 must be > 0, or None for off"),
        ({"scan_unroll": 0}, "scan_unroll=0 must be > 0, or None"),
        (
            {"activation": "elu"},
            "activation='elu' must be one of swiglu, geglu, clamped",
        ),
        (
            {"attention": "flash"},
            "attention='flash' must be one of auto, cudnn, pallas, chunked, xla",
        ),
        ({"attention_bias": "True"}, "attention_bias='True' must be one of none, qkv, all"),
        ({"dropout": 1.0}, r"dropout=1.0 must be in \[0, 1\)"),
        ({"rope_scaling": "linear", "rope_factor": 0.5}, "rope_factor=0.5 must be >= 1"),
        ({"rope_factor": 2.0}, "rope_factor=2.0 must be 1 without scaling; set rope_scaling"),
        ({"rope_scaling": "llama3", "rope_factor": 8.0}, "rope_original_len=None must be > 0"),
        (
            {"rope_scaling": "llama3", "rope_original_len": 64, "rope_low_freq_factor": 4.0},
            "rope_low_freq_factor=4.0 must be > 0 and < rope_high_freq_factor=4.0",
        ),
        ({"global_every": 2}, "global_every=2 must come with a window"),
        ({"global_every": 1, "window": 4}, "global_every=1 must be from 2 to num_layers=6"),
        ({"global_every": 7, "window": 4}, "global_every=7 must be from 2 to num_layers=6"),
        (
            {"global_every": 2, "window": 4, "global_layers": (1,)},
            r"global_layers=\(1,\) must rise, be below num_layers=6",
        ),
        ({"window": 4, "global_layers": (6,)}, r"global_layers=\(6,\) must rise, be below"),
        ({"global_layers": (1,)}, r"global_layers=\(1,\) must come with a window"),
        ({"rope_local_base": 10.0}, "rope_local_base=10.0 must come with a window"),
        ({"rope_frac": 0.4}, "rope_frac=0.4 must be in .* turn an even number of the head_dim=8"),
        ({"rope_scaling": "yarn", "rope_factor": 8.0}, "rope_original_len=None must be > 0"),
        ({"rope_attention_factor": 2.0}, "rope_attention_factor=2.0 is for rope_scaling yarn and"),
        ({"rope_beta_slow": 32.0}, "rope_beta_slow=32.0 must be < rope_beta_fast=32.0"),
        ({"rope_long_factors": (1.0,)}, r"rope_long_factors=\(1.0,\) must be 0 positive numbers"),
        (
            {"rope_scaling": "longrope", "rope_original_len": 8, "rope_short_factors": (1.0,)},
            r"rope_short_factors=\(1.0,\) must be 4 positive numbers",
        ),
        ({"norm_placement": "mid"}, "norm_placement='mid' must be one of pre, post, both, res"),
        ({"qk_norm": "True"}, "qk_norm='True' must be one of none, head, all"),
        ({"vocab_multiple": 0}, "vocab_multiple=0 must be > 0"),
        ({"remat": "fully"}, "remat='fully' must be none, full, dots, or save: followed by"),
        ({"remat": "save:query,ffn_uq"}, "remat='save:query,ffn_uq' must be"),
        ({"remat": "save:"}, "remat='save:' must be"),
        ({"remat": "keep:query"}, "remat='keep:query' must be"),
    ],
)
def test_config_refuses_what_no_model_can_be_and_says_why(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        dataclasses.replace(SMALL, **changes)
    # The section's path goes before the message, so the bare field name must come first.
    assert str(error.value).split("=")[0] in {field.name for field in dataclasses.fields(SMALL)}


def test_saved_names_are_those_of_the_remat_form_save():
    assert dataclasses.replace(SMALL, remat="save:query,ffn_up").saved_names() == (
        "query",
        "ffn_up",
    )
    assert dataclasses.replace(SMALL, remat=f"save:{','.join(SAVEABLE)}").saved_names() == SAVEABLE
    assert dataclasses.replace(SMALL, remat="dots").saved_names() == ()


def test_every_kth_layer_ignores_the_window():
    config = dataclasses.replace(SMALL, window=4, global_every=3)
    assert [config.layer_window(i) for i in range(6)] == [4, 4, None, 4, 4, None]
    assert [dataclasses.replace(SMALL, window=4).layer_window(i) for i in range(6)] == [4] * 6
    assert SMALL.layer_window(0) is None


def test_named_layers_ignore_the_window():
    config = dataclasses.replace(SMALL, window=4, global_layers=(0, 3))
    assert [config.layer_window(i) for i in range(6)] == [None, 4, 4, None, 4, 4]
    assert config.layer_period() == 3
    assert dataclasses.replace(SMALL, window=4, global_layers=(0, 1)).layer_period() == 6
    assert dataclasses.replace(SMALL, window=4, global_every=2).layer_period() == 2
    assert SMALL.layer_period() == 1


def test_vocabulary_is_padded_to_a_multiple():
    assert SMALL.num_vocab_rows == 64
    assert dataclasses.replace(SMALL, vocab_size=65, vocab_multiple=32).num_vocab_rows == 96


def test_every_option_is_documented():
    assert [f.name for f in dataclasses.fields(SMALL) if not f.metadata["doc"]] == []
