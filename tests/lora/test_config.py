import math

import pytest

from jaxtrain.lora.config import LoraConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 0}, r"rank=0 must be at least 1 \(None trains"),
        ({"alpha": 0.0}, "alpha=0.0 must be > 0 and finite"),
        ({"alpha": math.inf}, "alpha=inf must be"),
        ({"targets": ()}, "targets is empty"),
    ],
)
def test_values_that_make_no_updates_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        LoraConfig(**fields)


def test_scale_is_alpha_by_rank():
    assert LoraConfig(rank=8, alpha=4.0).scale == 0.5


def test_updates_without_a_model_to_adapt_are_refused(tiny_config):
    with pytest.raises(
        ValueError, match=r"lora\.rank=8 adapts a model that is there; name it with"
    ):
        tiny_config({"lora.rank": 8})
