"""Losses and gradients of the trainers of `trl`, on the same tiny weights and rows.

There each answer is a padded row of its own; here all of them stand packed in two rows. The
trainers are made without their `__init__`, which wants a tokenizer and a data set: what their loss
functions read is set by hand.
"""

import collections
import copy
import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import quick

from jaxtrain.hub.load import abstract_model
from jaxtrain.losses.answers import answer_logprobs
from jaxtrain.losses.preference import PreferenceConfig, preference
from jaxtrain.losses.reward import RewardConfig, reward
from jaxtrain.losses.xent import XentConfig, cross_entropy
from tests.hub.families.parity import import_model
from tests.hub.families.parity import reference as make_reference
from tests.losses.answer_rows import Answer, make_rows

pytestmark = pytest.mark.reference

LENGTH = 64
PER_PAIR = 4  # pairs


def draw(rng, num_trained, prompt_len, value=0.0):
    return Answer(rng.integers(3, 48, prompt_len + num_trained), prompt_len, value)


def draw_pairs():
    """Prompts of one token and chosen answers of equal length: where a trainer takes the mean over
    a batch's tokens, or the prompt's as well, it is then that over pairs and answers."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 7, PER_PAIR)
    return [[draw(rng, 5, 1), draw(rng, int(n), 1)] for n in lengths]


def draw_judged(size=3):
    rng = np.random.default_rng(1)
    judged = [draw(rng, int(rng.integers(2, 6)), 2, value) for value in (1.0, -1.0, 1.0)]
    return [judged + [draw(rng, int(rng.integers(2, 6)), 2) for _ in range(size)]]


@dataclasses.dataclass
class Both:
    """Policy and reference of `transformers`, and the same ones here."""

    policy: object
    reference: object
    ours: object
    ours_reference: object

    cache: list = dataclasses.field(default_factory=list)

    def cached(self, batch):
        """Log-probabilities under our reference; all calls have the same batch."""
        if not self.cache:
            bind = self.ours_reference.parts.bind

            def logprobs(params, batch):
                return answer_logprobs(bind(params, {}), batch, 1024)

            batch = jax.tree.map(jnp.asarray, batch)
            self.cache.append(quick(logprobs)(self.ours_reference.params, batch))
        return self.cache[0]

    def gradients(self, loss):
        """(loss, gradients of embedding and last norm) of a torch loss."""
        self.policy.zero_grad()
        loss.backward()
        backbone = self.policy.model
        return loss.item(), (backbone.embed_tokens.weight.grad, backbone.norm.weight.grad)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    torch = pytest.importorskip("torch")
    pytest.importorskip("trl")
    from trl.trainer.utils import add_fused_lm_head

    folder = tmp_path_factory.mktemp("models")
    policy = make_reference("LlamaForCausalLM", {"num_hidden_layers": 1}, folder / "policy")
    other = copy.deepcopy(policy)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    other.save_pretrained(folder / "reference")
    ours, ours_reference = (import_model(folder / name) for name in ("policy", "reference"))
    outputs = ("log_probs", "entropy", "mean_logits", "is_top1")
    for model in (policy, other):
        add_fused_lm_head(model, outputs=outputs)
    return Both(policy, other, ours, ours_reference)


def trainer_of(cls, both, **attributes):
    """A trainer whose loss functions can be called."""
    accelerate = pytest.importorskip("accelerate")
    trainer = object.__new__(cls)
    metrics = {mode: collections.defaultdict(list) for mode in ("train", "eval")}
    trainer.__dict__.update(
        model=both.policy,
        ref_model=both.reference,
        accelerator=accelerate.Accelerator(cpu=True),
        args=SimpleNamespace(gradient_checkpointing_kwargs=None, **attributes.pop("args", {})),
        aux_loss_enabled=False,
        _metrics=metrics,
        _total_train_tokens=0,
        _tp_size=1,
        **attributes,
    )
    return trainer


def padded(answers):
    """(ids, attention mask, mask of the answers) with filler to the right, as tensors."""
    torch = pytest.importorskip("torch")
    width = max(len(answer.ids) for answer in answers)
    ids, attention, trained = (np.zeros((len(answers), width), np.int64) for _ in range(3))
    for row, answer in enumerate(answers):
        n = len(answer.ids)
        ids[row, :n], attention[row, :n], trained[row, answer.prompt_len : n] = answer.ids, 1, 1
    return torch.tensor(ids), torch.tensor(attention), torch.tensor(trained)


def ours(loss, both, batch, frozen=True):
    """(loss, gradients of embedding and last norm) of a loss here."""

    def mean(params, reference_params, batch):
        reference = both.ours_reference.parts.bind(reference_params, {})
        model = both.ours.parts.bind(params, {})
        sums = loss(model, {"reference": reference} if frozen else {}, batch, None)
        return sums.loss_sum / sums.weight_sum

    batch = jax.tree.map(jnp.asarray, batch)
    arguments = both.ours.params, both.ours_reference.params, batch
    value, grads = quick(jax.value_and_grad(mean))(*arguments)
    return value, (grads["embedding_VD"], grads["final_norm"]["scale"])


def assert_same(actual, expected):
    assert actual[0] == pytest.approx(expected[0], rel=1e-5)
    for x, y in zip(actual[1], expected[1], strict=True):
        x, y = np.asarray(x), y.numpy()
        assert np.abs(y).max() > 0
        assert np.abs(x - y).max() < 1e-5 * max(1, np.abs(y).max())


DPO = {
    "dpo": ("sigmoid", PreferenceConfig(), {}),
    "robust": ("robust", PreferenceConfig(kind="robust", label_smoothing=0.1), {}),
    "ipo": ("ipo", PreferenceConfig(kind="ipo"), {}),
    "hinge": ("hinge", PreferenceConfig(kind="hinge"), {}),
    "apo_zero": ("apo_zero", PreferenceConfig(kind="apo_zero"), {}),
    "apo_down": ("apo_down", PreferenceConfig(kind="apo_down"), {}),
    "js": ("sigmoid", PreferenceConfig(divergence="js"), {"f_divergence_type": "js_divergence"}),
    "forward_kl": (
        "sigmoid",
        PreferenceConfig(divergence="forward_kl"),
        {"f_divergence_type": "forward_kl"},
    ),
    "alpha": (  # alpha there is 1 - alpha here and in the paper
        "sigmoid",
        PreferenceConfig(divergence="alpha", divergence_alpha=0.3),
        {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.7},
    ),
}


@pytest.mark.parametrize("name", DPO)
def test_dpo_is_that_of_trl(both, name):
    from trl import DPOTrainer

    loss_type, config, more = DPO[name]
    pairs = draw_pairs()
    trainer = trainer_of(
        DPOTrainer,
        both,
        beta=0.1,
        ld_alpha=None,
        precompute_ref_logps=False,
        loss_types=[loss_type],
        loss_weights=[1.0],
        label_smoothing=config.label_smoothing,
        use_weighting=False,
        **{"f_divergence_type": "reverse_kl", **more},
    )
    ids, attention, trained = padded([pair[i] for i in range(2) for pair in pairs])
    inputs = {"input_ids": ids, "attention_mask": attention, "completion_mask": trained}
    expected = both.gradients(trainer._compute_loss(both.policy, inputs, False))
    batch = make_rows([pairs[:1], pairs[1:]], LENGTH, 7)
    if name != "dpo":  # as well as with the reference in the same step
        batch = batch._replace(reference=both.cached(batch))
    assert_same(ours(preference(config), both, batch, frozen=name == "dpo"), expected)
    metrics = {name: values[0] for name, values in trainer._metrics["eval"].items()}
    assert metrics["rewards/margins"] != 0  # what this compares is not nothing


CPO = {
    "cpo": (PreferenceConfig(kind="cpo"), {"loss_type": "sigmoid", "cpo_alpha": 1.0}),
    "simpo": (
        PreferenceConfig(kind="simpo", beta=2.0, gamma=0.7),
        {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 0.7},
    ),
    "orpo": (PreferenceConfig(kind="orpo"), {}),
}


@pytest.mark.parametrize("name", CPO)
def test_losses_without_reference_are_those_of_trl(both, name):
    if name == "orpo":
        from trl.experimental.orpo import ORPOTrainer as Trainer
    else:
        from trl.experimental.cpo import CPOTrainer as Trainer
    config, more = CPO[name]
    pairs = draw_pairs()
    attributes = {
        "beta": 0.1,
        "alpha": 0.0,
        "label_smoothing": 0.0,
        "is_encoder_decoder": False,
        "pad_token_id": 0,
        "padding_value": 0,
        **more,
    }
    trainer = trainer_of(Trainer, both, **attributes)
    batch = {}
    for index, side in enumerate(("chosen", "rejected")):
        ids, attention, trained = padded([pair[index] for pair in pairs])
        batch[f"{side}_input_ids"], batch[f"{side}_attention_mask"] = ids, attention
        batch[f"{side}_labels"] = ids.masked_fill(trained == 0, -100)
    loss, _ = trainer.get_batch_loss_metrics(both.policy, batch)
    expected = both.gradients(loss)
    rows = make_rows([pairs[:1], pairs[1:]], LENGTH, 7)
    assert_same(ours(preference(config), both, rows, frozen=False), expected)


@pytest.mark.parametrize("kind", ["kto", "apo_zero_unpaired"])
def test_kto_is_that_of_trl_where_the_batch_is_the_group(both, kind):
    torch = pytest.importorskip("torch")
    from trl import KTOTrainer

    groups = draw_judged()
    trainer = trainer_of(
        KTOTrainer,
        both,
        beta=0.5,
        loss_type=kind,
        calculate_KL=kind == "kto",
        precompute_ref_logps=False,
        desirable_weight=1.2,
        undesirable_weight=0.8,
    )
    judged = [answer for answer in groups[0] if answer.value]
    mismatched = [answer for answer in groups[0] if not answer.value]
    ids, attention, trained = padded(judged)
    inputs = {"input_ids": ids, "attention_mask": attention, "completion_mask": trained}
    ids, attention, trained = padded(mismatched)
    inputs |= {"KL_input_ids": ids, "KL_attention_mask": attention, "KL_completion_mask": trained}
    inputs["label"] = torch.tensor([answer.value > 0 for answer in judged])
    expected = both.gradients(trainer._compute_loss(both.policy, inputs, False))
    assert (trainer._metrics["eval"]["kl"][0] > 0) == (kind == "kto")
    config = PreferenceConfig(kind=kind, beta=0.5, desirable_weight=1.2, undesirable_weight=0.8)
    batch = make_rows([groups], LENGTH, 6)
    assert_same(ours(preference(config), both, batch), expected)


def test_sft_is_that_of_trl(both):
    from trl import SFTTrainer

    answers = [answer for pair in draw_pairs() for answer in pair]
    trainer = trainer_of(
        SFTTrainer,
        both,
        args={"loss_type": "nll", "average_tokens_across_devices": False},
        compute_loss_func=None,
        label_smoother=None,
    )
    ids, attention, trained = padded(answers)
    labels = ids.masked_fill(trained == 0, -100)
    inputs = {"input_ids": ids, "attention_mask": attention, "labels": labels}
    expected = both.gradients(trainer.compute_loss(both.policy, inputs))
    batch = make_rows([[answers[:3]], [answers[3:]]], LENGTH, 5).tokens
    assert_same(ours(cross_entropy(XentConfig()), both, batch, frozen=False), expected)


@pytest.mark.parametrize("with_margin", [False, True])
def test_reward_is_that_of_trl(both, with_margin):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from trl import RewardTrainer

    pairs = draw_pairs()
    if with_margin:
        margins = np.random.default_rng(2).uniform(0, 2, PER_PAIR)
        pairs = [
            [dataclasses.replace(chosen, value=float(margin)), rejected]
            for (chosen, rejected), margin in zip(pairs, margins, strict=True)
        ]
    w_D = np.random.default_rng(3).normal(size=32).astype(np.float32)
    config = copy.deepcopy(both.policy.config)
    config.num_labels = 1
    scorer = transformers.LlamaForSequenceClassification(config)
    scorer.model = both.policy.model
    scorer.score.weight.data = torch.tensor(w_D)[None]
    trainer = trainer_of(RewardTrainer, both, args={"center_rewards_coefficient": 0.01})
    ids, attention, _ = padded([pair[i] for i in range(2) for pair in pairs])
    inputs = {"input_ids": ids, "attention_mask": attention}
    if with_margin:
        inputs["margin"] = torch.tensor(margins, dtype=torch.float32)
    expected = both.gradients(trainer.compute_loss(scorer, inputs))

    parts = abstract_model(dataclasses.replace(both.ours.model.config, scalar_head=True))
    params = {name: leaf for name, leaf in both.ours.params.items() if name != "w_head_DV"}
    scored = dataclasses.replace(
        both,
        ours=SimpleNamespace(parts=parts, params=params | {"w_score_D": jnp.asarray(w_D)}),
    )
    batch = make_rows([pairs[:1], pairs[1:]], LENGTH, 7)
    loss = reward(RewardConfig(centring=0.01))
    assert_same(ours(loss, scored, batch, frozen=False), expected)
