"""Public fault reports about conversion, on a checkpoint whose logits a float64 script gives."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxtrain import import_hf
from jaxtrain.export import export
from jaxtrain.hub.load import abstract_model
from jaxtrain.hub.model import HubModel
from jaxtrain.hub.vocabulary import add_tokens
from jaxtrain.tokenizer.tokenizer import Tokenizer
from tests.hub.families.parity import QUICK, import_model

pytestmark = pytest.mark.shared


@pytest.fixture(scope="module")
def make(shared_dir, tmp_path_factory):
    """Makes a checkpoint with the given flags; returns its directory and what is expected."""

    def run(*flags):
        path = tmp_path_factory.mktemp("case") / "model"
        script = shared_dir / "cases" / "inputs" / "HFX-01.make.py"
        subprocess.run([sys.executable, script, path, *flags], check=True)
        return path, json.loads((path / "expected.json").read_text())

    return run


def logits_TV(imported, ids):
    ids_BT = jnp.asarray(ids, jnp.int32)[None]
    positions_BT = jnp.arange(len(ids), dtype=jnp.int32)[None]

    def forward(params):
        return imported.parts.bind(params, {})(ids_BT, positions_BT)[0]

    return np.asarray(jax.jit(forward, compiler_options=QUICK)(imported.params), np.float64)


def nll_sum(logits, ids):
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -logprobs[np.arange(len(ids) - 1), ids[1:]].sum()


def weights(directory):
    return {
        name: tensor
        for path in directory.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }


def assert_same_bits(directory, other):
    theirs, ours = weights(directory), weights(other)
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype
        assert ours[name].tobytes() == tensor.tobytes(), name


@pytest.mark.parametrize(
    ("flags", "sum_nll"),
    [
        ([], 67.620867),  # HFX-01: rotary layout
        (["--head_dim", "16"], 60.054589),
        (["--tied"], 139.107027),  # HFX-03: tied head
        (["--shards", "2", "--bf16"], 67.509340),  # HFX-06, HFX-07: shards, bfloat16
    ],
    ids=str,
)
def test_a_model_computes_what_it_should_and_goes_back_bit_for_bit(make, tmp_path, flags, sum_nll):
    path, expected = make(*flags)
    imported = import_model(path)
    ids = expected["ids"]
    logits = logits_TV(imported, ids)
    np.testing.assert_allclose(logits[-1, :8], expected["last_logits_first8"], atol=1e-3)
    assert logits.argmax(-1).tolist() == expected["argmax_each"]
    assert nll_sum(logits, ids) == pytest.approx(sum_nll, abs=1e-3)

    import_hf.import_model(HubModel(path), tmp_path / "run", "case")
    export(tmp_path / "run", None, tmp_path / "out")
    assert_same_bits(path, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    given = json.loads((path / "config.json").read_text())
    assert {name: written[name] for name in given} == given  # tie and dtype among them


def test_a_bfloat16_model_in_float32_is_its_upcast(make, tmp_path):
    path, _ = make("--bf16")
    import_hf.import_model(HubModel(path), tmp_path / "run", "case")
    export(tmp_path / "run", None, tmp_path / "out", "float32")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "float32"
    again = weights(tmp_path / "out")
    for name, tensor in weights(path).items():
        assert again[name].dtype == np.float32
        np.testing.assert_array_equal(again[name], tensor.astype(np.float32))


@pytest.mark.parametrize(("num_new", "num_rows"), [(4, 288), (40, 304)])
def test_added_tokens_leave_a_padded_vocabulary_and_old_logits_alone(make, num_new, num_rows):
    """HFX-08: 288 rows of which 264 are tokens."""
    path, expected = make("--pad_vocab", "288")
    imported = import_model(path)
    before = logits_TV(imported, expected["ids"])
    rows = weights(path)["model.embed_tokens.weight"]
    imported.params = add_tokens(imported.params, 264, num_new)
    table = np.asarray(imported.params["embedding_VD"])
    assert table.shape[0] == num_rows
    np.testing.assert_array_equal(table[:264], rows[:264])
    np.testing.assert_array_equal(table[264 + num_new : 288], rows[264 + num_new :])
    mean = rows[:264].astype(np.float64).mean(0)
    np.testing.assert_allclose(table[264 : 264 + num_new], [mean] * num_new, atol=1e-6)

    config = dataclasses.replace(imported.model.config, vocab_size=num_rows)
    imported.parts = abstract_model(config)
    after = logits_TV(imported, expected["ids"])
    np.testing.assert_allclose(after[:, :264], before[:, :264], atol=1e-5)


# ------------------------------------------------------------------------------ a real model


@pytest.fixture(scope="module")
def stories(shared_dir):
    return shared_dir / "data" / "model-stories260k"


def golden_text(stories):
    """The greedy sample in the model's description."""
    text = (stories / "stories260K.md").read_text()
    return text.split("-t 0.0\n")[1].split("\n```")[0]


def test_a_real_model_writes_its_golden_text(stories):
    imported = import_model(stories / "hf")
    tokenizer = Tokenizer.load(stories / "hf")
    expected = golden_text(stories)
    length = len(tokenizer.encode(expected)) + 8
    positions_BT = jnp.arange(length, dtype=jnp.int32)[None]

    @jax.jit
    def greedy(params):
        model = imported.parts.bind(params, {})

        def extend(at, row):
            return row.at[0, at].set(
                jnp.argmax(model(row, positions_BT)[0, at - 1]).astype("int32")
            )

        row = jnp.zeros((1, length), jnp.int32).at[0, 0].set(1)
        return jax.lax.fori_loop(1, length, extend, row)

    ids = np.asarray(greedy(imported.params))[0].tolist()
    text = tokenizer.decode(ids[1:])
    assert text.lstrip().startswith(expected)


@pytest.mark.reference
def test_a_real_model_goes_back_and_loads_in_transformers(stories, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    import_hf.import_model(HubModel(stories / "hf"), tmp_path / "run", "stories")
    export(tmp_path / "run", None, tmp_path / "out")
    assert_same_bits(stories / "hf", tmp_path / "out")
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert {name: list(found) for name, found in report.items() if found} == {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
    ours = import_model(tmp_path / "out")
    with torch.no_grad():
        expected = model(ids).logits[0].numpy()
    np.testing.assert_allclose(logits_TV(ours, ids[0].tolist()), expected, atol=1e-4)
