"""Adapter directories, loaded by the `peft` package onto the model that they are for."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxtrain.export import export, export_adapter
from jaxtrain.hub import peft
from jaxtrain.hub.families import BY_MODEL_TYPE
from jaxtrain.hub.model import HubModel
from jaxtrain.hub.weights import Leaf
from jaxtrain.lora.adapters import Target
from jaxtrain.lora.config import LoraConfig
from tests.hub.families.parity import INPUTS_BT, POSITIONS_BT, SIZES, import_model, reference
from tests.hub.families.test_deepseek_v2 import EXPERTS, LATENT
from tests.hub.tiny import write
from tests.lora_runs import logits, lora_config, quick_jit, save_run, save_whole

ROW = slice(0, 1)  # one whole document


def their_logits(model):
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        return model(torch.tensor(INPUTS_BT[ROW])).logits.numpy()


@pytest.mark.reference
@pytest.mark.parametrize(
    ("architecture", "fields", "targets"),
    [
        ("LlamaForCausalLM", {}, ("*.attention.*", "*.ffn.*")),
        # Parts of tensors that hold several matrices, and another rank for these.
        ("Phi3ForCausalLM", {}, ("*.w_q_DNH", "*.w_v_DKH", "*.w_o_NHD", "*.w_up_DF")),
        # Latents, and layers in two stacks. (PEFT takes mlp names beside experts for the experts.)
        (
            "DeepseekV2ForCausalLM",
            {**LATENT, **EXPERTS, "num_hidden_layers": 2},
            ("*.attention.*",),
        ),
    ],
)
def test_adapter_on_the_base_and_merged_model_give_our_logits(
    architecture, fields, targets, tmp_path
):
    package = pytest.importorskip("peft")
    theirs = reference(architecture, fields, tmp_path / "base")
    config = lora_config(tmp_path / "base", HubModel(tmp_path / "base"), targets=targets)
    program, params, frozen = save_run(tmp_path / "run", config)
    batch = [jnp.asarray(x[ROW]) for x in (INPUTS_BT, POSITIONS_BT)]
    ours = logits(program, params, frozen, *batch)
    without = their_logits(theirs)
    assert np.abs(ours - without).max() > 0.3

    summary = export_adapter(tmp_path / "run", None, tmp_path / "adapter")
    assert f"{tmp_path / 'adapter'}: adapter of base" in summary
    adapted = package.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    np.testing.assert_allclose(their_logits(adapted), ours, atol=1e-4)

    export(tmp_path / "run", None, tmp_path / "merged", "float32")
    merged = import_model(tmp_path / "merged")
    assert merged.model.family.architecture == architecture
    forward = quick_jit(lambda p: merged.parts.bind(p, {})(*batch))
    again = forward(merged.params)
    np.testing.assert_allclose(again, ours, atol=1e-4)  # as for every family


@pytest.mark.reference
def test_the_adapter_of_a_reward_model_has_its_head(tmp_path):
    """Loaded onto a language model, to which `transformers` gives a head of its own making."""
    package, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    reference("LlamaForCausalLM", {}, tmp_path / "base")
    scorer = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "base", num_labels=1, pad_token_id=0
    )
    config = lora_config(tmp_path / "base", HubModel(tmp_path / "base"), targets=("*.w_q_DNH",))
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, scalar_head=True))
    program, params, frozen = save_run(tmp_path / "run", config)
    bind = program.parametrize(program.model).bind
    batch = [jnp.asarray(x[ROW]) for x in (INPUTS_BT, POSITIONS_BT)]

    @quick_jit
    def last_score(params, frozen):
        model = bind(params, {}, frozen)
        return model.scores(model.hidden(*batch, jnp.ones_like(batch[0]), None))[:, -1:]

    ours = np.asarray(last_score(params, frozen))
    assert np.abs(ours - their_logits(scorer.eval())).max() > 0.1

    export_adapter(tmp_path / "run", None, tmp_path / "adapter")
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (written["task_type"], written["modules_to_save"]) == ("SEQ_CLS", ["score"])
    adapted = package.PeftModel.from_pretrained(scorer, tmp_path / "adapter").eval()
    np.testing.assert_allclose(their_logits(adapted), ours, atol=1e-4)


def test_modules_are_named_in_short_where_all_of_a_kind_are_adapted(tmp_path):
    base = write(tmp_path / "base")
    config = lora_config(base, HubModel(base), targets=("*.w_k_DKH", "*.w_down_FD"))
    save_run(tmp_path / "run", config)
    export_adapter(tmp_path / "run", 4, tmp_path / "out", "bfloat16")
    written = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert written["target_modules"] == ["down_proj", "k_proj"]
    assert (written["r"], written["lora_alpha"], written["rank_pattern"]) == (2, 6.0, {})
    assert written["base_model_name_or_path"] == "base"
    tensors = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert len(tensors) == 3 * 2 * 2
    of = "base_model.model.model.layers.2.mlp.down_proj"
    shapes = [tensors[f"{of}.lora_{which}.weight"].shape for which in "AB"]
    assert shapes == [(2, 12), (8, 2)]
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"bfloat16"}


def test_experts_have_no_adapter(tmp_path):
    target = Target("blocks.ffn.w_up_EDF", "LEDF")
    update = peft.Update(target, np.zeros((1, 2, 4, 2)), np.zeros((1, 2, 2, 8)))
    leaves = {target.path: Leaf(target.letters, (1, 2, 4, 8))}
    family = BY_MODEL_TYPE["mixtral"]
    sizes = {name: value for name, value in SIZES.items() if not name.startswith("attn")}
    model = family.read({**sizes, "num_local_experts": 2})
    with pytest.raises(ValueError, match=r"w_up_EDF is no linear layer of a mixtral model"):
        peft.save_adapter(
            tmp_path, family, model, LoraConfig(rank=2), {target.path: update}, {}, leaves,
            np.dtype("float32"), "base",
        )  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_an_adapter_of_a_run_that_trained_everything_is_refused(tmp_path):
    base = write(tmp_path / "base")
    config = lora_config(base, HubModel(base), rank=None)
    save_whole(tmp_path / "run", config)
    with pytest.raises(ValueError, match="trained a whole model; leave --adapter out"):
        export_adapter(tmp_path / "run", None, tmp_path / "out")
    with pytest.raises(ValueError, match="--base=x: the run trained a whole model and has none"):
        export(tmp_path / "run", None, tmp_path / "out", base="x")
    assert not (tmp_path / "out").exists()
