import pytest

from jaxtrain.hub.families import qwen2
from tests.hub.families.parity import SIZES, check_family

SIZES_ONLY = {k: v for k, v in SIZES.items() if not k.startswith("attn")}


@pytest.mark.reference
def test_qwen2_is_that_of_transformers(tmp_path):
    fields = {
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 1,
        "max_position_embeddings": 16,
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 200.0},
    }
    config = check_family("Qwen2ForCausalLM", fields, tmp_path).config
    assert (config.attention_bias, config.tied_head) == ("qkv", True)
    assert [config.layer_window(layer) for layer in range(3)] == [None, 4, 4]
    assert config.rope_original_len == 16


def test_a_window_that_is_switched_off_is_none():
    assert qwen2.FAMILY.read({**SIZES_ONLY, "sliding_window": 4}).window is None
    listed = ["sliding_attention"] * 3
    with pytest.raises(ValueError, match="layer_types has sliding layers"):
        qwen2.FAMILY.read({**SIZES_ONLY, "layer_types": listed})
