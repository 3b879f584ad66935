"""Public fault reports that hold for stages after pre-training too, from their launchers."""

import json

import numpy as np
import pytest

from jaxtrain.tokenizer.tokenizer import Tokenizer
from tests.chats import base_tokenizer
from tests.stage_steps import Steps, moved, spread
from tests.stages import STAGES, make_store, save_model

# ------------------------------------------------------------- PRE-04: terms beside the main loss


def whole_and_accumulated(stages, workdir, name, **given):
    """Metrics of the first batch, a little off the start, in one piece and in four."""
    start = stages.start(name, workdir, **given)
    params = moved(start.state.params)
    return [
        Steps(spread(start, num_microbatches=num), start, params).step(start.batch())
        for num in (1, 4)
    ]


def assert_same(found):
    for name, value in found[0].items():
        assert found[1][name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_cross_entropy_and_hidden_states_beside_a_divergence_are_not_diluted(stages, tmp_path):
    """total = (1 - alpha) · nll + alpha · temperature² · divergence + weight · hidden."""
    found = whole_and_accumulated(
        stages, tmp_path, "distill_in_step", teacher__from=stages.base, loss__alpha=0.7,
        loss__hidden_weight=0.1, loss__divergence="reverse_kl",
    )  # fmt: skip
    assert_same(found)
    for each in found:
        assert min(each["nll"], each["divergence"], each["hidden"]) > 1e-3
        total = 0.3 * each["nll"] + 0.7 * 4 * each["divergence"] + 0.1 * each["hidden"]
        assert each["loss"] == pytest.approx(total, rel=1e-5)


def test_likelihood_beside_a_preference_is_not_diluted(stages, tmp_path):
    found = whole_and_accumulated(stages, tmp_path, "dpo_ahead", loss__nll_weight=0.1)
    assert_same(found)
    for each in found:
        main = each["loss"] - 0.1 * each["nll"]
        assert each["nll"] > 1
        assert 0.5 < main < 1  # about log 2


def test_centring_beside_an_order_is_not_diluted(stages, tmp_path):
    found = whole_and_accumulated(stages, tmp_path / "with", "reward", loss__centring=0.1)
    assert_same(found)
    plain = whole_and_accumulated(stages, tmp_path / "without", "reward", loss__centring=0.0)
    term = found[0]["loss"] - plain[0]["loss"]
    # Of each pair 0.1 · (s + s')²; its mean is at least the square of the mean.
    mean = found[0]["rewards/chosen"] + found[0]["rewards/rejected"]
    assert term >= 0.1 * mean**2 - 1e-5
    assert found[1]["loss"] - plain[1]["loss"] == pytest.approx(term, rel=1e-4)


# --------------------------------------------------------------------------------------- SFT-04


@pytest.fixture(scope="module")
def adds_bos(tmp_path_factory):
    """(a tokenizer that puts BOS before every text, as the template does; a model that has it)."""
    plain = base_tokenizer()
    bos = plain.control_id("bos")
    content, name = json.loads(plain.files["tokenizer.json"]), plain.token(bos)
    text = {"Sequence": {"id": "A", "type_id": 0}}
    first = {"SpecialToken": {"id": name, "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {name: {"id": name, "ids": [bos], "tokens": [name]}},
    }
    tokenizer = Tokenizer(json.dumps(content).encode())
    return tokenizer, save_model(tmp_path_factory.mktemp("bos"), 0, like=tokenizer)


@pytest.mark.parametrize("name", ["sft", "reward", "dpo_in_step", "kto", "distill_in_step"])
def test_bos_is_there_once_in_all_that_a_stage_reads(stages, adds_bos, tmp_path, name):
    """SFT-04."""
    tokenizer, model = adds_bos
    make_store(STAGES[name].data, tmp_path / "store", tokenizer)
    store = tmp_path / "store"
    given = {"data__sources__rows__path": store, "data__eval_sources__heldout__path": store}
    models = ["init__from", *(["teacher__from"] if STAGES[name].launcher == "distill" else [])]
    given |= dict.fromkeys(models, model)
    batch = stages.start(name, tmp_path / "run", **given).batch()
    tokens = getattr(batch, "tokens", batch)
    is_bos = tokens.inputs == tokenizer.control_id("bos")
    is_first = (tokens.positions == 0) & (tokens.segment_ids > 0)
    np.testing.assert_array_equal(is_bos & (tokens.segment_ids > 0), is_first)
    assert is_first.sum() >= 8
