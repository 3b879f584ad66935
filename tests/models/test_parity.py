"""Logits against other people's code: Hugging Face `transformers`, and a float64 script."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpy_decoder
import pytest
from flax import nnx

from jaxtrain.models.config import ModelConfig
from jaxtrain.models.decoder import Decoder
from jaxtrain.models.parameters import split
from jaxtrain.precision.recipe import get_recipe

CONFIG = ModelConfig(
    vocab_size=48,
    num_layers=3,
    d_model=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    d_ff=40,
    norm_eps=1e-6,
)
SIZES = {
    "vocab_size": 48,
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 40,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.3,
    "attn_implementation": "eager",
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES = {
    "Llama": (
        {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3_ROPE},
        {
            "attention_bias": "all",
            "ffn_bias": True,
            "rope_base": 500.0,
            "rope_scaling": "llama3",
            "rope_factor": 4.0,
            "rope_original_len": 16,
        },
    ),
    "Qwen2": ({"tie_word_embeddings": True}, {"attention_bias": "qkv", "tied_head": True}),
    "Qwen3": ({}, {"qk_norm": "head"}),
    "Mistral": ({"sliding_window": 5}, {"window": 5}),
}


def logits_of(config, params, ids):
    make = lambda: Decoder(config, rngs=nnx.Rngs(0), recipe=get_recipe("float32"))  # noqa: E731
    bind = split(nnx.eval_shape(make)).bind
    ids_BT = jnp.asarray(ids, jnp.int32)[None]
    positions_BT = jnp.arange(len(ids), dtype=jnp.int32)[None]
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    return np.asarray(jax.jit(lambda p: bind(p, {})(ids_BT, positions_BT))(params))[0]


@pytest.mark.reference
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs, ours = FAMILIES[family]
    torch.manual_seed(0)
    hf_config = getattr(transformers, f"{family}Config")(**SIZES, **theirs)
    model = getattr(transformers, f"{family}ForCausalLM")(hf_config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:  # they start at 0 and 1: without effect
                parameter.add_(0.3 * torch.randn_like(parameter))
    config = dataclasses.replace(CONFIG, **{"rope_base": 10_000.0, **ours})
    tensors = {name: value.numpy() for name, value in model.state_dict().items()}
    ids = np.random.default_rng(0).integers(0, 48, 24)
    with torch.no_grad():
        expected = model(torch.tensor(ids[None])).logits[0].numpy()
    got = logits_of(config, numpy_decoder.from_hugging_face(tensors, config), ids)
    assert np.std(expected) > 0.5
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("arguments", "sum_nll"),
    [([], 67.620867), (["--head_dim", "16"], 60.054589), (["--tied", "--theta", "500000"], None)],
)
def test_logits_are_those_of_an_independent_script(shared_dir, tmp_path, arguments, sum_nll):
    safetensors = pytest.importorskip("safetensors.numpy")
    script = shared_dir / "cases" / "inputs" / "HFX-01.make.py"
    subprocess.run([sys.executable, script, tmp_path, *arguments], check=True)
    theirs = json.loads((tmp_path / "config.json").read_text())
    expected = json.loads((tmp_path / "expected.json").read_text())
    config = ModelConfig(
        vocab_size=theirs["vocab_size"],
        num_layers=theirs["num_hidden_layers"],
        d_model=theirs["hidden_size"],
        num_heads=theirs["num_attention_heads"],
        num_kv_heads=theirs["num_key_value_heads"],
        head_dim=theirs["head_dim"],
        d_ff=theirs["intermediate_size"],
        norm_eps=theirs["rms_norm_eps"],
        rope_base=theirs["rope_theta"],
        tied_head=theirs["tie_word_embeddings"],
    )
    tensors = safetensors.load_file(tmp_path / "model.safetensors")
    ids = expected["ids"]
    logits_TV = logits_of(config, numpy_decoder.from_hugging_face(tensors, config), ids)
    np.testing.assert_allclose(logits_TV[-1, :8], expected["last_logits_first8"], atol=1e-4)
    assert logits_TV.argmax(-1).tolist() == expected["argmax_each"]
    nll = numpy_decoder.nll_sum(logits_TV[:-1].astype(np.float64), ids[1:])
    assert nll == pytest.approx(expected["sum_nll"], abs=1e-3)
    assert sum_nll is None or nll == pytest.approx(sum_nll, abs=1e-3)
