import pytest

from jaxtrain.hub.families import gemma3
from tests.hub.families.parity import SIZES, check_family

SIZES_ONLY = {k: v for k, v in SIZES.items() if not k.startswith("attn")}


@pytest.mark.reference
def test_gemma3_is_that_of_transformers(tmp_path):
    fields = {
        "head_dim": 12,
        "query_pre_attn_scalar": 7,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "final_logit_softcapping": 5.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
        },
    }
    config = check_family("Gemma3ForCausalLM", fields, tmp_path).config
    assert (config.rope_base, config.rope_local_base, config.rope_factor) == (900, 30, 8)
    assert config.global_every == 3
    assert config.qk_norm == "head"


def test_gemma3_file_of_version_4_is_read():
    old = {"num_hidden_layers": 8, "sliding_window": 4, "rope_local_base_freq": 30.0}
    old |= {"rope_theta": 900.0, "sliding_window_pattern": 4, "rope_scaling": None}
    config = gemma3.FAMILY.read({**SIZES_ONLY, **old})
    assert (config.rope_base, config.rope_local_base, config.global_every) == (900, 30, 4)
    default = gemma3.FAMILY.read({**SIZES_ONLY, "num_hidden_layers": 12})
    assert (default.window, default.global_every, default.rope_base) == (4096, 6, 1e6)


def test_stretched_local_layers_are_refused():
    rope = {
        "full_attention": {"rope_type": "default"},
        "sliding_attention": {"rope_type": "linear", "factor": 2.0},
    }
    with pytest.raises(ValueError, match="rope_type='linear' is not supported"):
        gemma3.FAMILY.read({**SIZES_ONLY, "rope_parameters": rope})
