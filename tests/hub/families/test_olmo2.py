import pytest

from tests.hub.families.parity import check_family


@pytest.mark.reference
def test_olmo2_is_that_of_transformers(tmp_path):
    rope = {"rope_type": "linear", "factor": 3.0, "rope_theta": 400.0}
    config = check_family("Olmo2ForCausalLM", {"rope_parameters": rope}, tmp_path).config
    assert (config.norm_placement, config.qk_norm) == ("post", "all")
    assert config.rope_factor == 3
