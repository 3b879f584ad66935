"""What differs between a checkpoint's metadata and the present, by hand-made metadata."""

import copy
import dataclasses

import pytest

from jaxtrain import config as config_lib
from jaxtrain import continuity
from jaxtrain.data.config import SourceConfig

STORES = {
    "a": {"fingerprint": "f" * 64, "tokenizer_sha256": "t" * 64},
    "b": {"fingerprint": "g" * 64, "tokenizer_sha256": "t" * 64},
}


def metadata_of(config, updates=10):
    """As a run of this config stores it."""
    return {"config": config_lib.to_plain(config), "data": STORES, "updates": updates}


def test_another_seed_or_weight_gives_other_batches_and_a_later_change_does_not(tiny_config):
    metadata = metadata_of(tiny_config())
    assert continuity.other_batches(metadata, tiny_config(), 10) == []
    later = tiny_config({"data.sources.a.weight_changes": "((10, 0.1),)"})
    assert continuity.other_batches(metadata, later, 10) == []
    other = tiny_config({"loop.seed": 1, "data.sources.a.weight": 0.5})
    assert continuity.other_batches(metadata, other, 10) == [
        "config.loop.seed: 0 -> 1", "config.data.sources.a.weight: 0.7 -> 0.5",
    ]  # fmt: skip


def test_a_saved_key_that_is_gone_is_a_difference(tiny_config):
    metadata = copy.deepcopy(metadata_of(tiny_config()))
    metadata["config"]["data"]["gone"] = 1
    (line,) = continuity.other_batches(metadata, tiny_config(), 10)
    assert line.startswith("config.data.gone is not a known key")


def test_stores_are_compared_by_content_under_the_same_name(tiny_config):
    metadata = metadata_of(tiny_config())
    assert continuity.other_stores(metadata, STORES, 4) == []
    now = {"a": STORES["a"], "b": {**STORES["b"], "fingerprint": "h" * 64}, "new": STORES["b"]}
    (line,) = continuity.other_stores(metadata, now, 4)
    assert line == (
        "config.data.sources.b holds other data than at the checkpoint of step 4 "
        "(fingerprint hhhhhhhhhhhh, was gggggggggggg)"
    )


def test_a_store_of_another_tokenizer_is_named_under_any_name(tiny_config):
    metadata = metadata_of(tiny_config())
    assert continuity.other_tokenizers(metadata, {"new": STORES["a"]}) == []
    (line,) = continuity.other_tokenizers(
        metadata, {"new": {**STORES["a"], "tokenizer_sha256": "x" * 64}}
    )
    assert line.startswith("config.data.sources.new was made with the tokenizer xxxxxxxxxxxx, ")


def test_a_tokenizer_that_was_taught_control_tokens_is_not_another(tiny_config):
    metadata = metadata_of(tiny_config())
    taught = {**STORES["a"], "tokenizer_sha256": "x" * 64, "taught_from": "t" * 64}
    assert continuity.other_tokenizers(metadata, {"chat": taught}) == []
    assert continuity.other_tokenizers(metadata, {"chat": {**taught, "taught_from": "u" * 64}})


def test_held_out_sets_that_are_new_gone_or_other_are_named():
    saved = {"heldout": {"same": "1", "other": "2", "gone": "3"}}
    now = {"same": "1", "other": "9", "new": "4"}
    assert continuity.other_heldout(saved, now) == ["gone", "new", "other"]
    assert continuity.other_heldout({}, now) == []  # not recorded by an earlier version


@pytest.mark.parametrize(
    ("schedule", "updates", "num_steps", "rises"),
    [
        ("wsd", 17, 40, True),
        ("wsd", 10, 40, False),  # the stable phase
        ("wsd", 17, 20, False),  # not extended
        ("cosine", 20, 40, True),
        ("linear", 15, 40, True),
        ("constant", 15, 40, False),
        ("inverse_sqrt", 15, 40, False),
        ("cosine", 15, 16, False),  # shortened: it falls
    ],
)
def test_a_rate_that_rises_again_is_told(tiny_config, schedule, updates, num_steps, rises):
    base = {"optim.schedule": schedule, "optim.decay_steps": "5", "optim.warmup_steps": "2"}
    if schedule != "wsd":
        del base["optim.decay_steps"]
    metadata = metadata_of(tiny_config({**base, "loop.num_steps": 20}), updates)
    lines = continuity.rising_rate(metadata, tiny_config({**base, "loop.num_steps": num_steps}))
    assert bool(lines) is rises


def test_a_rising_rate_is_told_in_numbers(tiny_config):
    base = {
        "optim.schedule": "linear", "optim.warmup_steps": 0, "optim.final_lr_frac": 0.0,
        "optim.lr": 0.1,
    }  # fmt: skip
    metadata = metadata_of(tiny_config({**base, "loop.num_steps": 20}), 15)
    (line,) = continuity.rising_rate(metadata, tiny_config({**base, "loop.num_steps": 30}))
    # lr (1 - 14/20), then lr (1 - 15/30)
    assert line.startswith("the learning rate rises again from 0.03 to 0.05: ")


def test_sources_that_count_nothing_yet_may_come(tiny_config):
    config = tiny_config()
    more = {**config.data.sources, "c": SourceConfig("c", 0.0, ((10, 1.0),))}
    data = dataclasses.replace(config.data, sources=more)
    later = dataclasses.replace(config, data=data)
    assert continuity.other_batches(metadata_of(config), later, 10) == []
