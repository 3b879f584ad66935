import copy
import dataclasses
import pathlib

import jax
import pytest

from jaxtrain import config as config_lib
from jaxtrain import config_program, run_config
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.models.flops import num_active_params, num_params
from jaxtrain.parallel.mesh import make_mesh
from jaxtrain.run_config import RunConfig
from jaxtrain.types import Batch

CONFIGS = sorted((pathlib.Path(__file__).parents[1] / "configs" / "pretrain").glob("*.py"))
PARAMETERS = {  # exact
    "tiny": 5_048_576,
    "120m": 124_635_456,
    "1b": 1_235_814_400,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "encoder": 4_262_144,
    "moe_tiny": 12_839_216,
    "mixtral_8x7b": 46_702_792_704,  # published: 46.7B, 30.5B, 671B
    "qwen3_30b_a3b": 30_532_122_624,
    "deepseek_v3": 671_026_419_200,
}
ACTIVE = {  # in closed form in models/test_flops.py, and why they are 12.9B, 3.3B and 37B elsewhere
    "mixtral_8x7b": 12_879_925_248,
    "qwen3_30b_a3b": 3_353_032_704,
    "deepseek_v3": 37_552_297_472,
}


KEYS = [
    "checkpoint.keep_best",
    "checkpoint.keep_every",
    "checkpoint.keep_last",
    "checkpoint.save_every",
    "data.batch_size",
    "data.batch_size_changes",
    "data.eval_sources.*.path",
    "data.eval_sources.*.weight",
    "data.eval_sources.*.weight_changes",
    "data.exhausted",
    "data.mask_frac",
    "data.num_workers",
    "data.objective",
    "data.packing",
    "data.prefetch",
    "data.seq_len",
    "data.sources.*.path",
    "data.sources.*.weight",
    "data.sources.*.weight_changes",
    "data.weighting",
    "init.from",
    "init.load",
    "loop.eval_every",
    "loop.log_every",
    "loop.max_skips",
    "loop.num_microbatches",
    "loop.num_steps",
    "loop.seed",
    "lora.alpha",
    "lora.base_dtype",
    "lora.rank",
    "lora.targets",
    "loss.chunk_tokens",
    "loss.label_smoothing",
    "loss.neftune_alpha",
    "loss.z_loss",
    "mesh.context",
    "mesh.data",
    "mesh.expert",
    "mesh.fsdp",
    "mesh.pipe",
    "mesh.sharding",
    "mesh.tensor",
    "model.activation",
    "model.attention",
    "model.attention_bias",
    "model.attention_block",
    "model.attention_scale",
    "model.attention_sinks",
    "model.attention_softcap",
    "model.bidirectional",
    "model.context_len",
    "model.d_ff",
    "model.d_ff_expert",
    "model.d_model",
    "model.dropout",
    "model.expert_capacity_factor",
    "model.expert_dispatch",
    "model.ffn_bias",
    "model.global_every",
    "model.global_layers",
    "model.head_dim",
    "model.kv_latent_dim",
    "model.logit_softcap",
    "model.masked_lm_head",
    "model.mtp_weight",
    "model.mtp_weight_changes",
    "model.norm",
    "model.norm_eps",
    "model.norm_offset",
    "model.norm_placement",
    "model.num_dense_layers",
    "model.num_experts",
    "model.num_experts_per_token",
    "model.num_heads",
    "model.num_kv_heads",
    "model.num_layers",
    "model.num_mtp_layers",
    "model.num_positions",
    "model.num_router_groups",
    "model.num_router_groups_per_token",
    "model.num_shared_experts",
    "model.num_token_types",
    "model.q_latent_dim",
    "model.qk_norm",
    "model.remat",
    "model.rope_attention_factor",
    "model.rope_base",
    "model.rope_beta_fast",
    "model.rope_beta_slow",
    "model.rope_factor",
    "model.rope_frac",
    "model.rope_head_dim",
    "model.rope_high_freq_factor",
    "model.rope_interleaved",
    "model.rope_local_base",
    "model.rope_long_factors",
    "model.rope_low_freq_factor",
    "model.rope_original_len",
    "model.rope_scaling",
    "model.rope_short_factors",
    "model.rope_truncate",
    "model.router_balance_over",
    "model.router_balance_weight",
    "model.router_bias",
    "model.router_bias_rate",
    "model.router_normalize",
    "model.router_scale",
    "model.router_scores",
    "model.router_selection_bias",
    "model.router_z_weight",
    "model.scalar_head",
    "model.scale_embedding",
    "model.scan_unroll",
    "model.tied_head",
    "model.value_head_dim",
    "model.vocab_multiple",
    "model.vocab_size",
    "model.window",
    "optim.b1",
    "optim.b2",
    "optim.clip_norm",
    "optim.decay_frac",
    "optim.decay_shape",
    "optim.decay_steps",
    "optim.decay_tokens",
    "optim.eps",
    "optim.final_lr_frac",
    "optim.lr",
    "optim.lr_base_batch_tokens",
    "optim.lr_batch_rule",
    "optim.momentum",
    "optim.name",
    "optim.schedule",
    "optim.state_format",
    "optim.warmup_steps",
    "optim.warmup_tokens",
    "optim.weight_decay",
    "optim.weight_decay_groups",
    "precision.emulate",
    "precision.exclude",
    "precision.grad_reduce_dtype",
    "precision.grad_rounding",
    "precision.recipe",
    "precision.scaling",
]


def resolved(path):
    return config_lib.resolve(RunConfig, config_lib.load(RunConfig, str(path)))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_file_resolves_to_the_model_it_names(path):
    model = resolved(path).model
    assert num_params(model) == PARAMETERS[path.stem]
    if path.stem in ACTIVE:
        assert num_active_params(model) == ACTIVE[path.stem]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_file_lowers_without_allocating(path):
    config = resolved(path)
    if config.mesh.expert > 1:
        sizes = {"data": 2, "fsdp": 2, "expert": 2}
    else:
        sizes = (
            {"data": 4, "fsdp": 2} if config.model.num_heads % 2 == 0 else {"data": 8, "fsdp": 1}
        )
    mesh_config = dataclasses.replace(config.mesh, **sizes, tensor=1)
    program = config_program.make_program(
        config, cross_entropy(config.loss), make_mesh(mesh_config)
    )
    shape = (8 * config.loop.num_microbatches, config.data.seq_len)
    ints = jax.ShapeDtypeStruct(shape, "int32")
    floats = jax.ShapeDtypeStruct(shape, "float32")
    lowered = program.lower(Batch(ints, ints, floats, ints, ints))
    state, metrics = lowered.out_info
    assert metrics["loss"].shape == ()
    assert state.params["embedding_VD"].shape == (config.model.vocab_size, config.model.d_model)


def test_every_key_of_the_tree_is_listed_here():
    """The tree stays small: a new key is a decision, made here too."""
    found = [knob.path for knob in config_lib.knobs(RunConfig)]
    assert len(found) == len(set(found))
    sections = {path.split(".")[0] for path in found}
    assert sections == {
        "model", "data", "optim", "loss", "mesh", "precision", "loop", "checkpoint", "init",
        "lora",
    }  # fmt: skip
    relied_on = {
        "loop.num_steps", "loop.seed", "loop.log_every", "loop.eval_every",
        "checkpoint.save_every", "checkpoint.keep_last", "init.from", "precision.recipe",
        "mesh.data", "mesh.fsdp", "mesh.expert", "mesh.pipe", "mesh.context", "mesh.tensor",
        "optim.name", "optim.lr", "optim.schedule", "optim.warmup_steps", "optim.weight_decay",
        "optim.clip_norm", "data.batch_size", "data.seq_len", "data.packing",
        "data.sources.*.path",
    }  # fmt: skip
    assert relied_on <= set(found)
    assert sorted(found) == KEYS


def test_every_key_is_documented():
    assert [knob.path for knob in config_lib.knobs(RunConfig) if len(knob.doc) < 10] == []


def test_split_changes_tells_another_run_from_a_continued_one(tiny_config):
    old = config_lib.to_plain(tiny_config())
    new = config_lib.to_plain(
        tiny_config({"model.d_ff": 128, "loop.log_every": 5, "data.sources.a.path": "elsewhere"})
    )
    breaking, harmless = run_config.split_changes(RunConfig, old, new)
    assert breaking == ["config.model.d_ff: 64 -> 128"]
    assert [line.split(":")[0] for line in harmless] == [
        "config.data.sources.a.path", "config.loop.log_every",
    ]  # fmt: skip


def test_a_config_of_an_earlier_version_differs_in_what_is_gone_and_not_in_what_is_new(tiny_config):
    new = config_lib.to_plain(tiny_config())
    old = copy.deepcopy(new)
    del old["mesh"], old["optim"]["b1"], old["data"]["sources"]["a"]["weight_changes"]
    assert run_config.split_changes(RunConfig, old, new) == ([], [])
    old["model"]["gone"] = 3
    del old["loop"]["seed"]
    changed = config_lib.to_plain(tiny_config({"loop.seed": 1}))
    breaking, _ = run_config.split_changes(RunConfig, old, changed)
    assert breaking == ["config.model.gone: 3 -> '(absent)'", "config.loop.seed: 0 -> 1"]


def test_where_the_base_of_a_lora_run_lies_may_change(tiny_config):
    """Its content is checked by fingerprint; of a run that trains everything init.from is fixed."""
    for overrides, may_change in (({}, False), ({"lora.rank": 2}, True)):
        old, new = (
            config_lib.to_plain(
                tiny_config({"init.from": where, "init.load": "params", **overrides})
            )
            for where in ("there", "here")
        )
        breaking, harmless = run_config.split_changes(RunConfig, old, new)
        assert (harmless if may_change else breaking) == ["config.init.from: 'there' -> 'here'"]
        assert not (breaking if may_change else harmless)


def test_masked_lm_and_a_bidirectional_model_belong_together(tiny_config):
    with pytest.raises(ValueError, match=r"config\.data\.objective='masked_lm'"):
        tiny_config({"data.objective": "masked_lm"})
    assert tiny_config({"data.objective": "masked_lm", "model.bidirectional": "true"}).isolated


def test_only_the_concatenated_stream_is_not_isolated(tiny_config):
    found = {p: tiny_config({"data.packing": p}).isolated for p in ("concat", "best_fit")}
    assert found == {"concat": False, "best_fit": True}


def test_the_config_of_a_model_differs_from_the_defaults_in_the_model_alone(tiny_config):
    shape = tiny_config({}).model
    config = run_config.of_model(shape, "bfloat16")
    assert config.model == shape
    assert config.precision.recipe == "bfloat16"
    assert config.optim == type(config.optim)()


def test_a_router_bias_does_not_move_where_the_router_is_frozen(tiny_config):
    experts = {
        "model.num_experts": 2, "model.router_selection_bias": True, "model.router_bias_rate": 0.1,
        "lora.rank": 2, "init.from": "elsewhere", "init.load": "params",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"model\.router_bias_rate=0\.1 must be 0 with lora\.rank"):
        tiny_config(experts)
