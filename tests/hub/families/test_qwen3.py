import pytest

from tests.hub.families.parity import check_family


@pytest.mark.reference
def test_qwen3_is_that_of_transformers(tmp_path):
    fields = {
        "head_dim": 16,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }
    config = check_family("Qwen3ForCausalLM", fields, tmp_path).config
    assert (config.qk_norm, config.attention_bias) == ("head", "all")
    assert config.global_every == 2
