import dataclasses
import re

import pytest

from jaxtrain import config as config_tree
from jaxtrain.optim.config import OptimConfig


def test_every_option_says_what_it_does():
    for field in dataclasses.fields(OptimConfig):
        assert field.metadata["doc"].endswith("."), field.name


def test_defaults_pass_their_own_checks_when_resolved_from_a_file():
    assert config_tree.resolve(OptimConfig, {}) == OptimConfig()


def test_resolve_prefixes_the_path_of_a_bad_value():
    with pytest.raises(ValueError, match=r"^config\.optim\.lr=-1\.0 must be > 0 and finite\.$"):
        config_tree.resolve(OptimConfig, {"lr": -1.0}, "config.optim")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "sgd"}, "name='sgd' must be one of adamw, lion, muon."),
        ({"schedule": "step"}, "schedule='step' must be one of cosine, wsd, linear, "),
        ({"lr": 0.0}, "lr=0.0 must be > 0 and finite."),
        ({"lr": float("nan")}, "lr=nan must be > 0 and finite."),
        ({"warmup_steps": -1}, "warmup_steps=-1 must be >= 0 and finite."),
        ({"clip_norm": -1.0}, "clip_norm=-1.0 must be >= 0 and finite; None turns clipping off."),
        ({"weight_decay": float("inf")}, "weight_decay=inf must be >= 0 and finite."),
        ({"b2": 1.0}, "b2=1.0 must be >= 0 and < 1."),
        ({"decay_frac": 1.5}, "decay_frac=1.5 must be a fraction between 0 and 1."),
        ({"final_lr_frac": -0.1}, "final_lr_frac=-0.1 must be a fraction between 0 and 1."),
        (
            {"weight_decay_groups": ("matrix", "norms")},
            "weight_decay_groups=('matrix', 'norms') must hold only matrix, embedding, head, "
            "vector; remove 'norms'.",
        ),
        (
            {"warmup_steps": 10, "warmup_tokens": 100},
            "warmup_tokens=100 must be None where warmup_steps=10 is set; give one of them.",
        ),
        (
            {"decay_steps": 10, "decay_tokens": 100},
            "decay_tokens=100 must be None where decay_steps=10 is set; give one of them.",
        ),
        (
            {"lr_batch_rule": "sqrt"},
            "lr_base_batch_tokens=None must be set where lr_batch_rule='sqrt'; give the tokens "
            "per step at which lr was tuned.",
        ),
    ],
)
def test_bad_values_are_refused_with_field_and_remedy(values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        OptimConfig(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"clip_norm": None},
        {"clip_norm": 0.0},
        {"weight_decay": 0.0},
        {"weight_decay_groups": ()},
        {"decay_frac": 1.0, "final_lr_frac": 0.0},
        {"warmup_tokens": 100},
    ],
)
def test_edge_values_with_a_meaning_are_accepted(values):
    OptimConfig(**values)
