import pytest

from jaxtrain.hub.families import phi3
from tests.hub.families.parity import SIZES, check_family

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 300.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.3],
    "long_factor": [2.0, 5.0],
}
FIELDS = {
    "rope_parameters": LONGROPE,
    "max_position_embeddings": 64,
    "original_max_position_embeddings": 16,
    "sliding_window": 9,
}


@pytest.mark.reference
def test_phi3_is_that_of_transformers(tmp_path):
    """The long document takes the long factors, the short ones beside it the short factors."""
    config = check_family("Phi3ForCausalLM", FIELDS, tmp_path).config
    assert (config.rope_frac, config.window) == (0.5, 9)
    assert config.rope_factor == 4
    assert (config.rope_short_factors, config.rope_long_factors) == ((1.0, 1.3), (2.0, 5.0))


def test_phi3_file_of_version_4_is_read_and_written_alike():
    old = {k: v for k, v in SIZES.items() if not k.startswith("attn")} | {
        "rope_theta": 300.0,
        "rope_scaling": {"type": "su", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
        "max_position_embeddings": 64,
        "original_max_position_embeddings": 16,
    }
    config = phi3.FAMILY.read(old)
    assert (config.rope_scaling, config.rope_factor) == ("longrope", 4)
    written = phi3.FAMILY.write(config)
    # Exactly these three, or the reference code of version 4 refuses the file.
    assert set(written["rope_scaling"]) == {"type", "short_factor", "long_factor"}
    with pytest.raises(ValueError, match=r"short_factor must be 4 numbers, one for each pair"):
        phi3.FAMILY.read({**old, "rope_scaling": {**old["rope_scaling"], "short_factor": [1.0]}})
