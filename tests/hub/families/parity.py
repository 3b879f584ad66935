"""A random tiny model of `transformers` against ours: logits, gradients, and the way back.

One row is a whole document, the other two packed ones and filler. The reference computes each
document alone, so that equal logits also say that packing and padding change nothing.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.hub import families, save
from jaxtrain.hub.load import abstract_model, load_params
from jaxtrain.hub.model import HubModel, logical_leaves
from jaxtrain.models.parameters import Split, flatten

SIZES = {
    "vocab_size": 48,
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "rms_norm_eps": 1e-4,  # so that a wrong one shows
    "initializer_range": 0.3,
    "attn_implementation": "eager",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LENGTH = 24
_rng = np.random.default_rng(0)
DOCUMENTS = [_rng.integers(3, 48, length) for length in (24, 11, 8)]
_FILLER = LENGTH - 19
INPUTS_BT = np.stack(
    [DOCUMENTS[0], np.concatenate([DOCUMENTS[1], DOCUMENTS[2], np.zeros(_FILLER, int)])]
).astype(np.int32)
POSITIONS_BT = np.array([[*range(24)], [*range(11), *range(8), *[0] * _FILLER]], np.int32)
SEGMENTS_BT = np.array([[1] * 24, [1] * 11 + [2] * 8 + [0] * _FILLER], np.int32)
#: Compiling costs more than anything else here; what is computed stays the same.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
WHERE = [(0, slice(0, 24)), (1, slice(0, 11)), (1, slice(11, 19))]


@dataclasses.dataclass
class Imported:
    """A model of ours that was read from a directory."""

    model: HubModel
    parts: Split
    params: Mapping[str, Any]

    @property
    def leaves(self):
        """Its parameters as the family's table sees them."""
        shapes = {path: tuple(leaf.shape) for path, leaf in flatten(self.params).items()}
        return logical_leaves(flatten(self.parts.axes), shapes, self.model.config.vocab_size)

    def export(self, out: pathlib.Path, dtype: str = "float32", **more: Any) -> None:
        """Writes it as a Hugging Face directory."""
        flat = {path: np.asarray(leaf) for path, leaf in flatten(self.params).items()}
        with save.whole_directory(out) as directory:
            save.save_model(
                directory,
                self.model.family,
                self.model.config,
                dtype,
                lambda path, where: flat[path][where],
                self.leaves,
                token_ids={"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
                **more,
            )


def import_model(directory: pathlib.Path, **changes: Any) -> Imported:
    """Reads a directory; `changes` to the config must keep the function."""
    model = HubModel(directory)
    config = dataclasses.replace(model.config, **changes)
    parts = abstract_model(config)
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), parts.params
    )
    return Imported(model, parts, load_params(model, wanted, parts.axes))


def reference(architecture: str, fields: Mapping[str, Any], directory: pathlib.Path):
    """A random model of `transformers`, saved; every parameter has an effect.

    Args:
      fields: of its config; those of SIZES that it has not are `...` here.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    name = architecture.removesuffix("ForCausalLM").removesuffix("ForMaskedLM")
    name = "Gemma3Text" if name == "Gemma3" else name
    given = {key: value for key, value in {**SIZES, **fields}.items() if value is not ...}
    config = getattr(transformers, f"{name}Config")(**given)
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias") or "norm" in parameter_name:
                parameter.add_(0.3 * torch.randn_like(parameter))
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("e_score_correction_bias"):
                buffer.add_(0.1 * torch.randn_like(buffer))
    model.save_pretrained(directory)
    return model


def check_family(architecture: str, fields: Mapping[str, Any], tmp_path: pathlib.Path) -> HubModel:
    """Asserts parity and the bit-exact way back; returns what was imported."""
    theirs = reference(architecture, fields, tmp_path / "theirs")
    ours = import_model(tmp_path / "theirs")
    assert ours.model.family.architecture == architecture
    _check_numbers(theirs, ours)
    ours.export(tmp_path / "out")
    _check_export(theirs, tmp_path / "out", ours)
    return ours.model


def _check_numbers(theirs: Any, ours: Imported) -> None:
    logits, grads = _ours(ours)
    expected_logits, expected_grads = _theirs(theirs)
    assert np.std(np.concatenate(expected_logits)) > 0.3  # not all the same
    for (row, span), expected in zip(WHERE, expected_logits, strict=True):
        np.testing.assert_allclose(logits[row, span], expected, atol=1e-4)
    flat = {path: np.asarray(leaf) for path, leaf in flatten(grads).items()}
    for weight in ours.model.weights:
        for name, index in weight.tensors(ours.leaves):
            arrays = [flat[part.path][index] for part in weight.parts]
            got, want = weight.tensor_of(arrays, ours.leaves, np.float32), expected_grads.get(name)
            if want is None:
                assert name.endswith("e_score_correction_bias"), name
                assert not got.any(), name
                continue
            if name.endswith("self.key.bias"):  # without RoPE it is the same in all scores: 0
                assert max(np.abs(got).max(), np.abs(want).max()) < 1e-4, name
                continue
            assert np.abs(want).max() > 0, name
            error = np.abs(got - want).max() / np.abs(want).max()
            assert error < 1e-3, f"{name}: {error}"


def _ours(ours: Imported):
    @functools.partial(jax.jit, compiler_options=QUICK)
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params):
        batch = map(jnp.asarray, (INPUTS_BT, POSITIONS_BT, SEGMENTS_BT))
        logits = ours.parts.bind(params, {})(*batch)
        logprobs = jax.nn.log_softmax(logits)
        total = jnp.float32(0)
        for (row, span), ids in zip(WHERE, DOCUMENTS, strict=True):
            of_document = logprobs[row, span][jnp.arange(len(ids) - 1), ids[1:]]
            total -= jnp.sum(of_document)
        return total, logits

    (_, logits), grads = loss(ours.params)
    return np.asarray(logits), grads


def _theirs(model: Any):
    torch = pytest.importorskip("torch")
    logits = []
    model.zero_grad()
    for ids in DOCUMENTS:
        given = torch.tensor(ids[None])
        out = model(given).logits[0]
        logits.append(out.detach().numpy())
        torch.nn.functional.cross_entropy(out[:-1], given[0, 1:], reduction="sum").backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    return logits, {name: grad.numpy() for name, grad in as_in_files(model, grads).items()}


def as_in_files(model: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """By the names of a checkpoint, which has one tensor for each expert where modules have one."""
    loading = pytest.importorskip("transformers.core_model_loading")
    return loading.revert_weight_conversion(model, dict(tensors))


def _check_export(theirs: Any, out: pathlib.Path, ours: Imported) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    head = "MaskedLM" if ours.model.family.is_encoder else "CausalLM"
    loaded, report = getattr(transformers, f"AutoModelFor{head}").from_pretrained(
        out, output_loading_info=True, attn_implementation="eager"
    )
    assert {name: list(found) for name, found in report.items() if found} == {}
    assert type(loaded) is type(theirs)
    again = loaded.state_dict()  # buffers too
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, again[name]), name
    # What the written config.json says is what was read, for them and for us.
    ids = torch.tensor(DOCUMENTS[0][None])
    with torch.no_grad():
        assert torch.equal(theirs(ids).logits, loaded.eval()(ids).logits)
    assert HubModel(out).config == ours.model.config
    assert not ours.model.family.cannot_express(ours.model.config)
    assert families.choose(ours.model.config)
