import numpy as np
import pytest

from jaxtrain.hub.load import abstract_model
from jaxtrain.hub.model import HubModel, logical_leaves
from jaxtrain.models.parameters import flatten
from tests.hub.tiny import L, V, tensors, write


def leaves_of(model):
    parts = abstract_model(model.config)
    shapes = {path: leaf.shape for path, leaf in flatten(parts.params).items()}
    return logical_leaves(flatten(parts.axes), shapes, model.config.vocab_size)


def check(directory):
    model = HubModel(directory)
    model.check(leaves_of(model))
    return model


def test_a_model_that_fits_is_silent(tmp_path):
    model = check(write(tmp_path))
    assert model.family.model_type == "llama"
    assert model.dtype == np.float32


def test_everything_that_does_not_fit_is_in_one_error(tmp_path):
    content = tensors()
    del content["model.layers.1.mlp.up_proj.weight"]
    content["model.layers.9.mlp.up_proj.weight"] = np.zeros(3, np.float32)
    content["model.norm.weight"] = np.zeros(9, np.float32)
    content["lm_head.weight"] = content["lm_head.weight"].astype(np.int8)
    with pytest.raises(ValueError, match=r"does not hold the model of its config.json") as error:
        check(write(tmp_path, content))
    for part in (
        "model.layers.1.mlp.up_proj.weight is missing",
        "model.layers.9.mlp.up_proj.weight is not known",
        "model.norm.weight has the shape [9], not [8]",
        "lm_head.weight has the dtype I8, not F32, F16, BF16",
    ):
        assert part in str(error.value)


def test_a_tied_head_may_be_there_as_an_exact_copy_only(tmp_path):
    tied = {"tie_word_embeddings": True}
    content = tensors()
    content["lm_head.weight"] = content["model.embed_tokens.weight"].copy()
    check(write(tmp_path / "copy", content, tied))
    content["lm_head.weight"][3, 1] += 1
    with pytest.raises(ValueError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        check(write(tmp_path / "other", content, tied))
    del content["lm_head.weight"]
    check(write(tmp_path / "absent", content, tied))


def test_frequencies_that_old_files_hold_are_passed_over(tmp_path):
    content = tensors()
    for layer in range(L):
        name = f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
        content[name] = np.ones(2, np.float32)
    check(write(tmp_path, content))


def test_an_untied_model_without_a_head_is_incomplete(tmp_path):
    content = tensors()
    del content["lm_head.weight"]
    with pytest.raises(ValueError, match=r"lm_head\.weight is missing"):
        check(write(tmp_path, content))


def test_no_directory_is_said(tmp_path):
    with pytest.raises(ValueError, match="nothing is not a directory"):
        HubModel(tmp_path / "nothing")


def test_logical_leaves_have_no_padding():
    leaves = logical_leaves({"e": "VD", "b": "LD"}, {"e": (64, 8), "b": (3, 8)}, V)
    assert leaves["e"].shape == (V, 8)
    assert leaves["b"].shape == (3, 8)
