import pytest

from jaxtrain.hub.families import gemma2
from tests.hub.families.parity import SIZES, check_family


@pytest.mark.reference
def test_gemma2_is_that_of_transformers(tmp_path):
    fields = {
        "head_dim": 12,
        "query_pre_attn_scalar": 7,
        "sliding_window": 4,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
        "attention_bias": True,
    }
    config = check_family("Gemma2ForCausalLM", fields, tmp_path).config
    assert (config.attention_softcap, config.logit_softcap) == (3, 5)
    assert [config.layer_window(layer) for layer in range(3)] == [4, None, 4]
    assert config.attention_scale == pytest.approx(7**-0.5)
    assert config.tied_head


def test_a_scale_of_nothing_is_refused():
    sizes = {k: v for k, v in SIZES.items() if not k.startswith("attn")}
    with pytest.raises(ValueError, match=r"query_pre_attn_scalar=0\.0 must be > 0"):
        gemma2.FAMILY.read({**sizes, "query_pre_attn_scalar": 0})


def test_null_is_no_soft_cap_and_absent_is_the_published_one():
    sizes = {k: v for k, v in SIZES.items() if not k.startswith("attn")}
    config = gemma2.FAMILY.read(sizes)
    assert (config.attention_softcap, config.logit_softcap, config.tied_head) == (50, 30, True)
    config = gemma2.FAMILY.read({**sizes, "attn_logit_softcapping": None})
    assert (config.attention_softcap, config.logit_softcap) == (None, 30)
