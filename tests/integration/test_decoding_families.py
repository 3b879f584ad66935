"""Greedy decoding of every family is that of `transformers.generate`, in one batch of ours.

Prompts of different lengths share the slots (each is filled up on the right), while the reference
has each alone: what it says thereby does not depend on padding or on neighbours. Windows are
shorter than the texts, so that rings go round.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.decode.draft import DraftModel
from jaxtrain.decode.engine import Engine, Request
from jaxtrain.decode.mtp import DraftModules
from jaxtrain.decode.sampling import Sampling
from tests.hub.families import (
    test_deepseek_v2,
    test_deepseek_v3,
    test_gpt_oss,
    test_mixtral,
    test_qwen3_moe,
)
from tests.hub.families.parity import import_model, reference

PROMPTS = [[1, 7, 30, 12, 9, 41, 5, 22, 17], [1, 19, 4], [1, 33, 8, 26, 44, 11]]
NUM_NEW = 8
HEADS = {"head_dim": 12, "query_pre_attn_scalar": 7, "sliding_window": 4}
# Random weights whose head is their embedding say again what they are given.
UNTIED = {"tie_word_embeddings": False}
FAMILIES = {
    "LlamaForCausalLM": {"attention_bias": True, "mlp_bias": True},
    "MistralForCausalLM": {"sliding_window": 5},
    "Qwen2ForCausalLM": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "Qwen3ForCausalLM": {"head_dim": 12},
    "Olmo2ForCausalLM": {},
    "Phi3ForCausalLM": {"sliding_window": 9},
    "Gemma2ForCausalLM": {
        **HEADS,
        **UNTIED,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
    },
    "Gemma3ForCausalLM": {
        **HEADS,
        **UNTIED,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "MixtralForCausalLM": test_mixtral.FIELDS,
    "Qwen3MoeForCausalLM": test_qwen3_moe.FIELDS,
    "DeepseekV2ForCausalLM": {
        **test_deepseek_v2.LATENT,
        **test_deepseek_v2.EXPERTS,
        **test_deepseek_v2.GROUPS,
    },
    "DeepseekV3ForCausalLM": {
        **test_deepseek_v3.FIELDS,
        "rope_parameters": test_deepseek_v3.YARN,
        "max_position_embeddings": 32,
    },
    "GptOssForCausalLM": {
        **test_gpt_oss.FIELDS,
        "sliding_window": 5,
        "rope_parameters": test_gpt_oss.YARN,
    },
}


@pytest.fixture(autouse=True)
def quick_compilation():
    """Compiling costs more than anything else here; what is computed stays the same."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.reference
@pytest.mark.parametrize(
    ("architecture", "has_draft"),
    [
        *((architecture, False) for architecture in FAMILIES),
        ("Gemma2ForCausalLM", True),  # rings, from which proposals are taken back
        ("DeepseekV3ForCausalLM", True),  # latents
        ("GptOssForCausalLM", True),  # sinks, experts
    ],
)
def test_greedy_decoding_is_that_of_transformers(architecture, has_draft, tmp_path):
    """A draft that is right now and then changes nothing."""
    fields = {"num_hidden_layers": 2, "pad_token_id": 0, "eos_token_id": None}
    theirs = reference(architecture, {**FAMILIES[architecture], **fields}, tmp_path)
    ours = import_model(tmp_path)
    draft = DraftModel(ours.parts, _disturbed(ours.params), 3) if has_draft else None
    engine = Engine(ours.parts, ours.params, max_len=20, num_slots=2, chunk=NUM_NEW, draft=draft)
    greedy = Sampling(temperature=0.0)
    answers = {}
    for emitted in engine.generate(Request(ids, NUM_NEW, greedy) for ids in PROMPTS):
        answers[emitted.request] = answers.get(emitted.request, []) + emitted.ids
    assert [answers[number] for number in range(3)] == [_theirs(theirs, ids) for ids in PROMPTS]
    assert len({i for answer in answers.values() for i in answer}) > 3  # not one token for ever
    accepted, proposed = engine.num_drafted
    assert not has_draft or 0 < accepted < proposed


@pytest.mark.reference
def test_modules_of_published_files_are_a_draft_of_their_model(tmp_path):
    theirs, _ = test_deepseek_v3.write_with_mtp(tmp_path)
    theirs.generation_config.eos_token_id = None
    ours = import_model(tmp_path)
    engine = Engine(
        ours.parts, ours.params, max_len=20, num_slots=2, chunk=NUM_NEW, draft=DraftModules(2)
    )
    greedy = Sampling(temperature=0.0)
    answers = {number: [] for number in range(3)}
    for emitted in engine.generate(Request(ids, NUM_NEW, greedy) for ids in PROMPTS):
        answers[emitted.request] += emitted.ids
    assert list(answers.values()) == [_theirs(theirs, ids) for ids in PROMPTS]
    assert engine.num_drafted[1] > 0


def _disturbed(params):
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda w: w * jnp.asarray(rng.normal(1, 0.2, w.shape), w.dtype) if w.ndim > 2 else w, params
    )


def _theirs(model, ids):
    torch = pytest.importorskip("torch")
    given = torch.tensor([ids])
    out = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        do_sample=False,
        max_new_tokens=NUM_NEW,
        min_new_tokens=NUM_NEW,
        pad_token_id=0,
    )
    return out[0, len(ids) :].tolist()
