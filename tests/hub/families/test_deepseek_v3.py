import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.hub.families import deepseek_v3
from jaxtrain.hub.load import abstract_model, check_fits
from jaxtrain.hub.model import HubModel
from jaxtrain.models.decoder import Decoder
from tests.hub.families.parity import (
    DOCUMENTS,
    QUICK,
    SIZES,
    as_in_files,
    check_family,
    import_model,
    reference,
)
from tests.hub.families.test_deepseek_v2 import EXPERTS, LATENT

YARN = {
    "rope_type": "yarn",
    "rope_theta": 300.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "mscale": 1.0,
    "mscale_all_dim": 0.707,
}
FIELDS = {
    **LATENT,
    **EXPERTS,
    "q_lora_rank": 10,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
    "num_nextn_predict_layers": 0,
}
SIZES_ONLY = {k: v for k, v in SIZES.items() if not k.startswith("attn")}


@pytest.mark.reference
def test_deepseek_v3_is_that_of_transformers(tmp_path):
    fields = {**FIELDS, "rope_parameters": YARN, "max_position_embeddings": 32}
    config = check_family("DeepseekV3ForCausalLM", fields, tmp_path).config
    assert (config.router_scores, config.router_selection_bias) == ("sigmoid", True)
    assert (config.q_latent_dim, config.rope_interleaved) == (10, True)
    sharper = 0.0707 * math.log(4) + 1
    assert config.attention_scale == pytest.approx(10**-0.5 * sharper**2)
    assert config.rope_attention_factor == pytest.approx((0.1 * math.log(4) + 1) / sharper)


def test_pairs_may_be_half_split():
    config = deepseek_v3.FAMILY.read(
        {**SIZES_ONLY, **FIELDS, "rope_interleave": False, "max_position_embeddings": 32}
    )
    assert not config.rope_interleaved
    assert deepseek_v3.FAMILY.cannot_express(config) == []


@pytest.mark.parametrize("norm_topk_prob", [False, True])
def test_renormalisation_is_read_and_written(norm_topk_prob):
    fields = {**SIZES_ONLY, **FIELDS, "norm_topk_prob": norm_topk_prob}
    config = deepseek_v3.FAMILY.read({**fields, "max_position_embeddings": 32})
    assert config.router_normalize == norm_topk_prob
    assert deepseek_v3.FAMILY.write(config)["norm_topk_prob"] == norm_topk_prob


@pytest.mark.parametrize(
    "mscale", [{}, {"mscale_all_dim": 1.0}, {"mscale": 1.0, "mscale_all_dim": 1.0}]
)
def test_every_form_of_mscale_is_written_as_it_was_read(mscale):
    scaling = {k: v for k, v in YARN.items() if k not in ("rope_theta", "mscale", "mscale_all_dim")}
    fields = {**SIZES_ONLY, **FIELDS, "rope_scaling": {**scaling, **mscale}}
    config = deepseek_v3.FAMILY.read({**fields, "max_position_embeddings": 32})
    written = deepseek_v3.FAMILY.write(config)
    assert {k: v for k, v in written["rope_scaling"].items() if "mscale" in k} == mscale


MTP = {**FIELDS, "num_hidden_layers": 1, "first_k_dense_replace": 0}


def write_with_mtp(directory):
    """A model and a module of multi-token prediction as published files have them."""
    torch = pytest.importorskip("torch")
    layers = pytest.importorskip("transformers.modeling_layers")
    saving = pytest.importorskip("safetensors.torch")
    main = reference("DeepseekV3ForCausalLM", MTP, directory)
    main.config.num_nextn_predict_layers = 1
    mtp = layers.MtpModel(main, 1).eval()
    with torch.no_grad():
        for parameter in mtp.layers.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter.ndim == 1))
    tensors = dict(as_in_files(main, main.state_dict()))
    for name, tensor in mtp.layers[0].state_dict().items():
        name = name.removeprefix("mtp_block.").replace("post_norm", "shared_head.norm")
        of = f"model.layers.1.{name}"
        if not name.startswith("mlp.experts."):
            tensors[of] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            at = f"model.layers.1.mlp.experts.{expert}."
            if name.endswith("down_proj"):
                tensors[f"{at}down_proj.weight"] = matrix
            else:
                gate, up = matrix.chunk(2)
                tensors |= {f"{at}gate_proj.weight": gate, f"{at}up_proj.weight": up}
    tensors["model.layers.1.embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.layers.1.shared_head.head.weight"] = tensors["lm_head.weight"]
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    saving.save_file(tensors, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    config["num_nextn_predict_layers"] = 1
    (directory / "config.json").write_text(json.dumps(config))
    return main, mtp


@pytest.mark.reference
def test_module_of_further_tokens_is_that_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    main, mtp = write_with_mtp(tmp_path / "theirs")
    ours = import_model(tmp_path / "theirs")
    ids = torch.tensor(DOCUMENTS[1][None])
    length = ids.shape[1] - 1
    positions = torch.arange(1, length + 1)[None]
    with torch.no_grad():
        h = main.model(ids[:, :-1]).last_hidden_state
        embedded = main.get_input_embeddings()(ids[:, 1:])
        mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
        turns = main.model.rotary_emb(embedded, position_ids=positions)
        want = main.lm_head(mtp.layers[0](embedded, h, turns, mask, positions, None))

    def logits(params, row):
        model = ours.parts.bind(params, {})
        assert isinstance(model, Decoder)
        places = jnp.arange(length, dtype=jnp.int32)[None]
        hidden = model.hidden(row[:, :-1], places)
        return model.logits(model.predict_further(0, hidden, row[:, 1:], places + 1))

    found = jax.jit(logits, compiler_options=QUICK)(
        ours.params, jnp.asarray(ids.numpy(), jnp.int32)
    )
    assert float(want.std()) > 0.3
    np.testing.assert_allclose(found, want.numpy(), atol=1e-4)

    ours.export(tmp_path / "out")
    read = HubModel(tmp_path / "theirs").tensors, HubModel(tmp_path / "out").tensors
    assert set(read[0].entries) == set(read[1].entries)
    for name in read[0].entries:
        np.testing.assert_array_equal(*(tensors.read(name) for tensors in read), err_msg=name)

    ours.export(tmp_path / "half", dtype="bfloat16")
    half = HubModel(tmp_path / "half").tensors
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"  # small steps move it
    assert half.entries["lm_head.weight"].dtype == "BF16"
    np.testing.assert_array_equal(half.read(bias), read[0].read(bias))
    assert half.entries[bias].dtype == "F32"


@pytest.mark.reference
def test_modules_that_are_counted_but_not_there_are_one_clear_error(tmp_path):
    reference("DeepseekV3ForCausalLM", {**MTP, "num_nextn_predict_layers": 1}, tmp_path)
    model = HubModel(tmp_path)
    parts = abstract_model(model.config)
    with pytest.raises(ValueError, match=r"not save these modules\); set it to 0") as error:
        check_fits(model, parts.params, parts.axes)
    assert "is missing" not in str(error.value)
