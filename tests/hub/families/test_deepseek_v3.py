import math

import pytest

from jaxtrain.hub.families import deepseek_v3
from tests.hub.families.parity import SIZES, check_family
from tests.hub.families.test_deepseek_v2 import EXPERTS, LATENT

YARN = {
    "rope_type": "yarn",
    "rope_theta": 300.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "mscale": 1.0,
    "mscale_all_dim": 0.707,
}
FIELDS = {
    **LATENT,
    **EXPERTS,
    "q_lora_rank": 10,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
    "num_nextn_predict_layers": 0,
}
SIZES_ONLY = {k: v for k, v in SIZES.items() if not k.startswith("attn")}


@pytest.mark.reference
def test_deepseek_v3_is_that_of_transformers(tmp_path):
    fields = {**FIELDS, "rope_parameters": YARN, "max_position_embeddings": 32}
    config = check_family("DeepseekV3ForCausalLM", fields, tmp_path).config
    assert (config.router_scores, config.router_selection_bias) == ("sigmoid", True)
    assert (config.q_latent_dim, config.rope_interleaved) == (10, True)
    sharper = 0.0707 * math.log(4) + 1
    assert config.attention_scale == pytest.approx(10**-0.5 * sharper**2)
    assert config.rope_attention_factor == pytest.approx((0.1 * math.log(4) + 1) / sharper)


def test_pairs_may_be_half_split():
    config = deepseek_v3.FAMILY.read(
        {**SIZES_ONLY, **FIELDS, "rope_interleave": False, "max_position_embeddings": 32}
    )
    assert not config.rope_interleaved
    assert deepseek_v3.FAMILY.cannot_express(config) == []


@pytest.mark.parametrize(
    "mscale", [{}, {"mscale_all_dim": 1.0}, {"mscale": 1.0, "mscale_all_dim": 1.0}]
)
def test_every_form_of_mscale_is_written_as_it_was_read(mscale):
    scaling = {k: v for k, v in YARN.items() if k not in ("rope_theta", "mscale", "mscale_all_dim")}
    fields = {**SIZES_ONLY, **FIELDS, "rope_scaling": {**scaling, **mscale}}
    config = deepseek_v3.FAMILY.read({**fields, "max_position_embeddings": 32})
    written = deepseek_v3.FAMILY.write(config)
    assert {k: v for k, v in written["rope_scaling"].items() if "mscale" in k} == mscale
