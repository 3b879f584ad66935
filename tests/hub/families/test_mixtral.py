import pytest

from jaxtrain.hub.families import mixtral
from tests.hub.families.parity import SIZES, check_family

FIELDS = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2}
SIZES_ONLY = {k: v for k, v in SIZES.items() if not k.startswith("attn")}


@pytest.mark.reference
def test_mixtral_is_that_of_transformers(tmp_path):
    config = check_family("MixtralForCausalLM", {**FIELDS, "sliding_window": 7}, tmp_path).config
    assert (config.num_experts, config.num_experts_per_token, config.window) == (4, 2, 7)
    assert config.rope_base == 1e6
    assert config.router_normalize


def test_noise_of_the_router_is_refused():
    with pytest.raises(ValueError, match=r"router_jitter_noise=0\.1 is not supported"):
        mixtral.FAMILY.read({**SIZES_ONLY, **FIELDS, "router_jitter_noise": 0.1})


def test_number_of_experts_is_read_under_either_name_and_must_agree():
    named = {**SIZES_ONLY, "num_experts": 6}
    assert mixtral.FAMILY.read(named).num_experts == 6
    with pytest.raises(ValueError, match=r"num_experts=6 is not supported \(only 4\): it repeats"):
        mixtral.FAMILY.read({**named, "num_local_experts": 4})
    with pytest.raises(ValueError, match="num_local_experts is missing"):
        mixtral.FAMILY.read(SIZES_ONLY)
