import dataclasses

from jaxtrain.hub.families import bert, llama
from jaxtrain.hub.model_card import model_card
from tests.hub.tiny import FIELDS

CONFIG = llama.FAMILY.read(FIELDS)


def card(metadata, data_card=None):
    return model_card("my-model", llama.FAMILY, CONFIG, "bfloat16", 7, metadata, data_card)


def test_the_card_says_what_the_model_is_and_how_well_it_did():
    metadata = {
        "metrics": {"eval/loss": 1.25, "eval/bits_per_byte": float("nan")},
        "updates": 1200,
        "versions": {"jax": "0.10"},
        "imported": {"name": "owner/base"},
    }
    text = card(metadata, {"documents": 3, "licence": "MIT"})
    assert text.startswith("---\nlibrary_name: transformers\n")
    for part in (
        "# my-model",
        "`LlamaForCausalLM` with 1,880 parameters",
        "from step 7 of a run",
        'from_pretrained("my-model")',
        "| context | 64 tokens |",
        "| eval/loss | 1.2500 |",
        "| eval/bits_per_byte | nan |",
        "- imported from `owner/base`",
        "- 1,200 updates",
        '"licence": "MIT"',
    ):
        assert part in text, part


def test_an_encoder_is_loaded_with_its_masked_lm_head():
    sizes = {"vocab_size": 24, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = bert.FAMILY.read({**sizes, "intermediate_size": 12})
    text = model_card("x", bert.FAMILY, config, "float32", 0, {}, None)
    assert "pipeline_tag: fill-mask" in text
    assert 'AutoModelForMaskedLM.from_pretrained("x")' in text
    assert "AutoModelForCausalLM" not in text
    assert 'AutoModelForCausalLM.from_pretrained("my-model")' in card({})


def test_what_is_not_known_is_left_out():
    text = card({})
    assert "## Metrics" not in text
    assert "## Training" not in text
    assert "## Data" not in text
    config = dataclasses.replace(CONFIG, context_len=None)
    assert "| context |  |" in model_card("x", llama.FAMILY, config, "float32", 0, {}, None)
