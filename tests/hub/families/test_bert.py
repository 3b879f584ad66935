import pytest

from jaxtrain.hub import families
from jaxtrain.hub.families import bert
from tests.hub.families.parity import check_family

SIZES = {
    "vocab_size": 48,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}


@pytest.mark.reference
def test_bert_is_that_of_transformers(tmp_path):
    fields = {"num_hidden_layers": 2, "max_position_embeddings": 30, "layer_norm_eps": 1e-4}
    fields |= {"num_key_value_heads": ..., "rms_norm_eps": ...}
    config = check_family("BertForMaskedLM", fields, tmp_path).config
    assert config.bidirectional
    assert (config.norm, config.norm_placement) == ("layer", "residual")
    assert (config.num_positions, config.num_token_types, config.tied_head) == (30, 2, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act='relu' is not supported"),
        ({"is_decoder": True}, "is_decoder=True is not supported"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key' is"),
        ({"hidden_size": 33}, "hidden_size=33 must be an even multiple of num_attention_heads=4"),
        ({"architectures": ["BertModel"]}, "other heads are not read"),
    ],
)
def test_bert_refuses_what_it_does_not_compute(changes, message):
    with pytest.raises(ValueError, match=message):
        bert.FAMILY.read({**SIZES, **changes})


def test_a_pooler_that_takes_no_part_is_passed_over():
    of_pooler = {"pooler_type": "first_token_transform", "pooler_fc_size": 7}
    given = {**SIZES, "directionality": "bidi", **of_pooler}
    assert bert.FAMILY.read(given) == bert.FAMILY.read(SIZES)


def test_a_decoder_is_no_bert_and_bert_no_decoder():
    config = bert.FAMILY.read(SIZES)
    assert bert.FAMILY.cannot_express(config) == []
    assert families.choose(config) is bert.FAMILY
    assert families.BY_MODEL_TYPE["llama"].cannot_express(config) == ["bidirectional=True"]
