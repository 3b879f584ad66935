import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxtrain.optim.build import build, clip_by_global_norm
from jaxtrain.optim.config import OptimConfig
from jaxtrain.optim.groups import group_tree

NUM_STEPS = 10
WARMUP = 4
PEAK = 0.02
WEIGHT_DECAY = 0.3  # large, so that a wrong decay shows after ten steps
OPTIMIZERS = ("adamw", "lion", "muon")


def config_of(name, **values):
    defaults = {
        "lr": PEAK,
        "schedule": "linear",
        "warmup_steps": WARMUP,
        "weight_decay": WEIGHT_DECAY,
        "clip_norm": None,
    }
    return OptimConfig(name=name, **{**defaults, **values})


def rate(c):
    """Closed form of the schedule in `config_of`."""
    fall = 0.1 + 0.9 * (1 - max(0, c - WARMUP) / (NUM_STEPS - WARMUP))
    return PEAK * min(1, (c + 1) / WARMUP) * fall


def make_update(transform):
    @jax.jit
    def update(params, state, grads):
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return update


def run(config, params, axes, grads_of_steps):
    transform = build(config, NUM_STEPS, axes, 1000).transform
    update = make_update(transform)
    state = transform.init(params)
    for grads in grads_of_steps:
        params, state = update(params, state, grads)
    return jax.tree.map(np.asarray, params)


def assert_close(actual, expected):
    # Ten float32 updates of about 0.02 on values of about 1.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6), actual, expected
    )


def split_matrices(tree):
    """Every layer of every matrix as a 2-D array, and everything else, by name."""
    blocks = tree["blocks"]
    matrices = {
        **{f"w_q{i}": w.reshape(8, 12) for i, w in enumerate(blocks["w_q"])},
        **{f"w_o{i}": w.reshape(12, 8) for i, w in enumerate(blocks["w_o"])},
        **{f"w_up{i}": w for i, w in enumerate(blocks["w_up"])},
        **{f"w_down{i}": w for i, w in enumerate(blocks["w_down"])},
    }
    spared = {name: tree[name] for name in ("embed", "final_norm")}
    return matrices, {**spared, "norm": blocks["norm"], "b_q": blocks["b_q"]}, tree["head"]


def torch_reference(params, grads_of_steps, make_matrix_optimizer):
    """Ten steps in torch on split parameters; matrices by the given optimizer, else AdamW."""
    torch = pytest.importorskip("torch")
    matrices, spared, head = split_matrices(params)
    tensors = {
        name: torch.nn.Parameter(torch.tensor(value))
        for name, value in {**matrices, **spared, "head": head}.items()
    }
    adamw = {"betas": (0.9, 0.95), "eps": 1e-8}
    optimizers = [
        make_matrix_optimizer([tensors[name] for name in matrices]),
        torch.optim.AdamW([tensors["head"]], weight_decay=WEIGHT_DECAY, **adamw),
        torch.optim.AdamW([tensors[name] for name in spared], weight_decay=0.0, **adamw),
    ]
    for step, grads in enumerate(grads_of_steps):
        matrices, spared, head = split_matrices(grads)
        for name, grad in {**matrices, **spared, "head": head}.items():
            tensors[name].grad = torch.tensor(grad)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate(step)
            optimizer.step()
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def flat(tree):
    matrices, spared, head = split_matrices(tree)
    return {**matrices, **spared, "head": head}


@pytest.mark.reference
def test_adamw_equals_torch_over_ten_steps(params, axes, grads_of_steps):
    torch = pytest.importorskip("torch")
    expected = torch_reference(
        params,
        grads_of_steps,
        lambda tensors: torch.optim.AdamW(
            tensors, betas=(0.9, 0.95), eps=1e-8, weight_decay=WEIGHT_DECAY
        ),
    )
    assert_close(flat(run(config_of("adamw"), params, axes, grads_of_steps)), expected)


@pytest.mark.reference
def test_muon_equals_torch_over_ten_steps(params, axes, grads_of_steps, monkeypatch):
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    # torch iterates in bfloat16 everywhere, we in float32 on the CPU: let torch do so too.
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.clone())
    expected = torch_reference(
        params,
        grads_of_steps,
        lambda tensors: torch.optim.Muon(
            tensors, momentum=0.95, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"
        ),
    )
    assert_close(flat(run(config_of("muon"), params, axes, grads_of_steps)), expected)


def test_lion_equals_float64_over_ten_steps(params, axes, grads_of_steps):
    decays = jax.tree.map(
        lambda group: WEIGHT_DECAY * (group in ("matrix", "head")), group_tree(axes)
    )

    def ten_steps(p, decay, *grads):
        p, m = p.astype(np.float64), np.zeros(p.shape)
        for step, g in enumerate(grads):
            direction = np.sign(0.9 * m + (1 - 0.9) * g)
            p = p - rate(step) * (direction + decay * p)
            m = 0.99 * m + (1 - 0.99) * g
        return p

    expected = jax.tree.map(ten_steps, params, decays, *grads_of_steps)
    assert_close(run(config_of("lion"), params, axes, grads_of_steps), expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_decay_alone_shrinks_matrices_and_leaves_the_rest_bit_exact(name, params, axes):
    """PRE-14: zero gradient, rate 1e-2, decay 0.1, 100 updates."""
    config = config_of(name, lr=1e-2, weight_decay=0.1, schedule="constant", warmup_steps=0)
    transform = build(config, 100, axes, 1000).transform
    zeros = jax.tree.map(jnp.zeros_like, params)

    def body(_, carry):
        updates, state = transform.update(zeros, carry[1], carry[0])
        return optax.apply_updates(carry[0], updates), state

    start = (jax.tree.map(jnp.asarray, params), transform.init(params))
    result, _ = jax.jit(lambda start: jax.lax.fori_loop(0, 100, body, start))(start)
    for before, after, group in zip(
        *map(jax.tree.leaves, (params, result, group_tree(axes))), strict=True
    ):
        if group in ("matrix", "head"):
            np.testing.assert_allclose(after, before * 0.904792, rtol=1e-5)  # 0.999 ** 100
        else:
            np.testing.assert_array_equal(after, before)


def test_weight_decay_groups_choose_what_decays(params, axes):
    config = config_of("adamw", weight_decay_groups=("embedding",), warmup_steps=0)
    zeros = jax.tree.map(jnp.zeros_like, params)
    result = run(config, params, axes, [zeros])
    np.testing.assert_allclose(
        result["embed"], params["embed"] * (1 - PEAK * WEIGHT_DECAY), rtol=1e-6
    )
    np.testing.assert_array_equal(result["head"], params["head"])


@pytest.mark.parametrize("limit", [0.0, 1.0])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_zero_gradient_leaves_parameters_unchanged_and_finite(name, limit, params, axes):
    """PRE-08: also where the limit of the norm is 0 itself."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    config = config_of(name, clip_norm=limit, weight_decay=0.0)
    jax.tree.map(np.testing.assert_array_equal, run(config, params, axes, [zeros] * 2), params)


def clip(limit, tree):
    update = jax.jit(lambda tree: clip_by_global_norm(limit).update(tree, optax.EmptyState())[0])
    return update(tree)


def test_clip_scales_the_whole_tree_to_the_limit(grads_of_steps):
    grads = grads_of_steps[3]
    norm = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in jax.tree.leaves(grads)))
    jax.tree.map(
        lambda a, g: np.testing.assert_allclose(a, g * (0.5 / norm), rtol=1e-5),
        clip(0.5, grads),
        grads,
    )


def test_clip_leaves_gradients_below_the_limit_bit_exact(grads_of_steps):
    jax.tree.map(np.testing.assert_array_equal, clip(1e3, grads_of_steps[0]), grads_of_steps[0])


def test_clip_at_limit_zero_removes_every_gradient(grads_of_steps):
    for leaf in jax.tree.leaves(clip(0.0, grads_of_steps[0])):
        assert not np.any(leaf)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_clip_does_not_repair_non_finite_gradients(value):
    grads = {"a": np.array([1.0, value], np.float32), "b": np.ones(2, np.float32)}
    assert np.isnan(clip(1.0, grads)["a"][1])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_clip_comes_before_the_moments(name, params, axes, grads_of_steps):
    # Clipped to the same norm, a gradient and its tenfold are the same gradient.
    config = config_of(name, clip_norm=0.1)
    tenfold = [jax.tree.map(lambda g: 10 * g, grads) for grads in grads_of_steps]
    assert_close(
        run(config, params, axes, tenfold[:2]), run(config, params, axes, grads_of_steps[:2])
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nan_reaches_the_parameters_when_no_guard_drops_the_step(name, params, axes):
    grads = jax.tree.map(lambda p: np.full_like(p, np.nan), params)
    result = run(config_of(name, clip_norm=1.0), params, axes, [grads])
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(result))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_moments_are_float32_and_counts_int32(name, params, axes):
    state = build(config_of(name), NUM_STEPS, axes, 1000).transform.init(params)
    for leaf in jax.tree.leaves(state):
        assert leaf.dtype == (jnp.int32 if leaf.ndim == 0 else jnp.float32)


def test_adamw_update_needs_no_temporary_of_parameter_size(axes):
    sizes = {"V": 64, "D": 64, "L": 4, "N": 4, "H": 16, "F": 128}
    params = jax.tree.map(
        lambda letters: jax.ShapeDtypeStruct(tuple(sizes[x] for x in letters), jnp.float32), axes
    )
    transform = build(config_of("adamw", clip_norm=1.0), NUM_STEPS, axes, 1000).transform
    state = jax.eval_shape(transform.init, params)

    def update(params, state, grads):
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    compiled = jax.jit(update, donate_argnums=(0, 1)).lower(params, state, params).compile()
    smallest_matrix = 4 * sizes["V"] * sizes["D"]
    assert compiled.memory_analysis().temp_size_in_bytes < smallest_matrix


def test_lengths_that_do_not_fit_are_refused_with_the_field(axes):
    message = "warmup_steps=2000 must be < config.loop.num_steps=1000; lower it or train longer."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build(OptimConfig(warmup_steps=2000), 1000, axes, 1000)


def test_branch_inside_its_own_decay_is_refused(axes):
    config = OptimConfig(schedule="wsd", decay_steps=300)
    build(config, 1000, axes, 1000, start_count=700)
    with pytest.raises(ValueError, match=r"^decay_steps=300 must be <= config\.loop\.num_steps"):
        build(config, 1000, axes, 1000, start_count=701)


def test_branch_decays_from_the_counts_of_its_checkpoint(params, axes, grads_of_steps):
    """Four trunk updates of 10, then a branch that ends at 6 and halves its way at t = 1/2."""
    values = {"schedule": "wsd", "warmup_steps": 0, "decay_steps": 2, "decay_shape": "linear"}
    config = config_of("adamw", final_lr_frac=0.0, weight_decay=0.0, **values)
    trunk = build(config, NUM_STEPS, axes, 1000)
    state = trunk.transform.init(params)
    update_trunk = make_update(trunk.transform)
    for grads in grads_of_steps[:4]:
        params, state = update_trunk(params, state, grads)
    branch = build(config, 6, axes, 1000, start_count=4)
    stable_update, falling_update = (jax.jit(o.transform.update) for o in (trunk, branch))
    for grads, expected in ((grads_of_steps[4], 1.0), (grads_of_steps[5], 0.5)):
        stable, _ = stable_update(grads, state, params)
        falling, state = falling_update(grads, state, params)
        jax.tree.map(
            lambda a, b, factor=expected: np.testing.assert_allclose(a, factor * b, rtol=1e-5),
            falling,
            stable,
        )


def test_summary_states_method_decay_clip_and_schedule(axes):
    text = build(OptimConfig(name="muon", warmup_steps=10), 100, axes, 1000).summary
    assert text == (
        "muon (momentum 0.95) on matrices, adamw (b1 0.9, b2 0.95, eps 1e-08) on the rest; weight "
        "decay 0.1 × lr on matrix, head; gradients clipped at norm 1\n"
        "lr 0.0003 (cosine, in applied updates); warm-up to 10; cosine decay from 10 to 0.1 of it "
        "at 100"
    )


def test_lion_takes_its_own_momentum_decay_unless_set(axes):
    assert "b2 0.99" in build(OptimConfig(name="lion"), 100, axes, 1000).summary
    assert "b2 0.95" in build(OptimConfig(name="lion", b2=0.95), 100, axes, 1000).summary
