import pytest

from jaxtrain.hub.families import decoder
from jaxtrain.hub.fields import Fields
from jaxtrain.models.config import ModelConfig

FULL, LOCAL = "full_attention", "sliding_attention"
SIZES = {"vocab_size": 16, "d_model": 8, "num_heads": 1, "num_kv_heads": 1, "head_dim": 8}


@pytest.mark.parametrize(
    "types",
    [
        [FULL] * 4,
        [LOCAL] * 4,
        [LOCAL, FULL, LOCAL, FULL],
        [LOCAL, LOCAL, FULL, LOCAL],
        [FULL, FULL, LOCAL, LOCAL],
        [FULL, LOCAL, LOCAL, FULL],
    ],
    ids=lambda types: "".join(each[0] for each in types),
)
def test_layer_types_are_read_and_written_alike(types):
    fields = Fields({"layer_types": types})
    windows = decoder.read_windows(fields, 4, [], 4)
    assert not fields.problems
    config = ModelConfig(**SIZES, num_layers=4, d_ff=8, **windows)
    assert decoder.write_layer_types(config) == types


@pytest.mark.parametrize(
    ("types", "window", "message"),
    [
        ([FULL] * 3, 4, "layer_types must be 4 of full_attention and sliding_attention, not 3"),
        ([FULL, "chunked_attention", FULL, FULL], 4, "not 4 with chunked_attention"),
        ([LOCAL] * 4, None, "sliding_window is missing, but layer_types has sliding layers"),
    ],
)
def test_layer_types_that_do_not_fit_are_refused(types, window, message):
    fields = Fields({"layer_types": types})
    decoder.read_windows(fields, window, [], 4)
    assert any(message in problem for problem in fields.problems)


def test_gemma_files_name_the_activation_twice_and_the_second_counts():
    fields = Fields({"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"})
    assert decoder.read_gelu_tanh(fields) == {"activation": "geglu"}
    fields.refuse_rest()
    assert fields.problems == []
