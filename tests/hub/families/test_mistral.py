import pytest

from jaxtrain.hub.families import mistral
from tests.hub.families.parity import SIZES, check_family

YARN = {
    "rope_type": "yarn",
    "rope_theta": 300.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
}


@pytest.mark.reference
def test_mistral_is_that_of_transformers(tmp_path):
    fields = {"sliding_window": 5, "head_dim": 12, "rope_parameters": YARN}
    model = check_family("MistralForCausalLM", fields, tmp_path)
    assert (model.config.window, model.config.rope_scaling) == (5, "yarn")


def test_an_absent_window_is_not_null():
    sizes = {k: v for k, v in SIZES.items() if not k.startswith("attn")}
    assert mistral.FAMILY.read(sizes).window == 4096
    assert mistral.FAMILY.read({**sizes, "sliding_window": None}).window is None
