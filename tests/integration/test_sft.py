"""Masked cross-entropy through the real step: against torch, packed or not, accumulated or not."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from safetensors.numpy import save_file

from jaxtrain.data.loader import Loader
from jaxtrain.hub.load import load_params
from jaxtrain.hub.model import HubModel
from jaxtrain.optim.build import Optimizer
from tests.chat_runs import ROWS, make_config, make_program, make_store
from tests.chats import expected

IGNORED = -100  # of torch's cross-entropy


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("chats"))


def whole_epoch(config):
    """All rows of the store once, as one batch."""
    loader = Loader(config.data, config.loop.seed)
    (source,) = loader.sources
    size = dataclasses.replace(config.data, batch_size=source.num_rows)
    return Loader(size, config.loop.seed).batch(0)


def epoch_sums(config):
    """(loss, targets) of the whole store."""
    program = make_program(config)
    state = program.init()
    batch = whole_epoch(config)
    sums = program.eval_step(state, {}, program.put(batch, len(batch.inputs)))
    return float(sums.loss_sum), float(sums.weight_sum)


def test_packed_and_unpacked_conversations_have_one_loss(store):
    """One a row, or several: what a conversation's tokens see is the same."""
    one_a_row = make_config(store, data__seq_len=16)
    packed = make_config(store, data__seq_len=64)
    assert whole_epoch(one_a_row).segment_ids.max() == 1
    assert whole_epoch(packed).segment_ids.max() > 2
    expected, found = epoch_sums(one_a_row), epoch_sums(packed)
    assert found == pytest.approx(expected, rel=1e-6)
    assert found[1] == sum(len(row["messages"][1]["content"]) + 1 for row in ROWS)


def _sgd(axes):
    del axes
    return Optimizer(optax.sgd(1.0), lambda count: np.float32(1.0), "sgd")


def _gradients(config, num_microbatches):
    program = dataclasses.replace(
        make_program(config), make_optimizer=_sgd, num_microbatches=num_microbatches
    )
    before = jax.device_get(program.init().params)
    batch = Loader(config.data, 0).batch(0)
    state, metrics = program.train_step(program.init(), {}, program.put(batch, len(batch.inputs)))
    after = jax.device_get(state.params)
    return metrics, jax.tree.map(lambda a, b: a.astype(np.float64) - b, before, after)


def test_accumulation_of_unequal_masks_equals_the_whole_batch(store):
    """Microbatches with 2 and with 3 targets a row: a mean of means would show."""
    config = make_config(store, data__seq_len=16)
    whole, grads = _gradients(config, 1)
    parts, accumulated = _gradients(config, 4)
    assert float(parts["loss"]) == pytest.approx(float(whole["loss"]), rel=1e-6)
    assert float(parts["target_weight"]) == float(whole["target_weight"])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6 * np.abs(b).max() + 2e-7),
        accumulated,
        grads,
    )


def test_the_program_is_that_of_pretraining(store, tiny_config):
    """From one function, and for one config the very same program: only the batch differs."""
    tuning, pretraining = make_program(make_config(store)), make_program(tiny_config())
    code = [program.train_step.__wrapped__.__code__ for program in (tuning, pretraining)]
    assert code[0] is code[1]
    batches = [Loader(make_config(store).data, 0).batch(0)]
    batches.append(batches[0]._replace(loss_weights=np.ones_like(batches[0].loss_weights)))
    texts = [tuning.lower(batch).as_text() for batch in batches]
    assert texts[0] == texts[1]


def test_eight_rows_are_learnt_by_heart(store):
    config = make_config(store, data__seq_len=16, optim__lr="3e-2", loop__num_steps=80)
    program = make_program(config)
    state, batch = program.init(), whole_epoch(config)
    put = program.put(batch, 8)
    losses = []
    for _ in range(80):
        state, metrics = program.train_step(state, {}, put)
        losses.append(float(metrics["loss"]))
    assert losses[:10] == sorted(losses[:10], reverse=True)
    assert losses[-1] < 0.05
    assert float(metrics["accuracy"]) == 1.0


@pytest.fixture(scope="module")
def reference(tmp_path_factory, store):
    """Folders of a Llama of `transformers` and of its gradients, and its loss, row by row."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("reference")
    m = make_config(store).model
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=m.vocab_size,
            hidden_size=m.d_model,
            intermediate_size=m.d_ff,
            num_hidden_layers=m.num_layers,
            num_attention_heads=m.num_heads,
            num_key_value_heads=m.num_kv_heads,
            head_dim=m.head_dim,
            rms_norm_eps=m.norm_eps,
            rope_theta=m.rope_base,
            initializer_range=0.3,
        )
    )
    llama.save_pretrained(folder / "weights")
    llama.save_pretrained(folder / "grads")
    nll, num_targets = 0.0, 0
    for row in ROWS:
        tokens = expected("seed", row["messages"], (False, True))
        ids = torch.tensor([[number for number, _ in tokens]])
        labels = torch.tensor([[number if train else IGNORED for number, train in tokens]])
        nll += torch.nn.functional.cross_entropy(
            llama(ids).logits[0, :-1], labels[0, 1:], ignore_index=IGNORED, reduction="sum"
        )
        num_targets += int((labels[0, 1:] != IGNORED).sum())
    loss = nll / num_targets
    loss.backward()
    grads = {name: leaf.grad.numpy() for name, leaf in llama.named_parameters()}
    save_file(grads, folder / "grads" / "model.safetensors", metadata={"format": "pt"})
    return folder, loss.item()


@pytest.mark.reference
def test_loss_and_gradients_are_those_of_torch_with_all_else_ignored(store, reference):
    """On packed rows here, one conversation at a time there."""
    folder, loss = reference
    config = make_config(store, data__seq_len=64)
    program = dataclasses.replace(make_program(config), make_optimizer=_sgd)
    abstract, axes = program.abstract_state.params, program.axes

    def read(name):
        return load_params(HubModel(folder / name), abstract, axes)

    batch = whole_epoch(config)
    before = jax.device_get(read("weights"))
    state = program.init()._replace(params=read("weights"))
    state, metrics = program.train_step(state, {}, program.put(batch, len(batch.inputs)))
    assert float(metrics["loss"]) == pytest.approx(loss, rel=1e-5)

    def compare(path, was, now, grad):
        # An update is read off parameters of size ~1, whose float32 rounding is the floor.
        atol = 1e-5 * np.abs(grad).max() + 2e-7
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(was.astype(np.float64) - now, grad, atol=atol, err_msg=name)

    after, grads = jax.device_get(state.params), jax.device_get(read("grads"))
    jax.tree_util.tree_map_with_path(compare, before, after, grads)
