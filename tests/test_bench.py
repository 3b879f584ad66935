import json
from types import SimpleNamespace

import pytest

from jaxtrain import bench, config_program, stage
from jaxtrain.models.flops import train_flops_per_token


def test_bench_prints_one_json_object_with_consistent_numbers(launcher, tiny_config):
    out = launcher.run("--num_steps=3", "--json", stage="bench")
    result = json.loads(out.splitlines()[-1])
    flops = train_flops_per_token(tiny_config().model, 32)
    assert result["model_flops_per_sec"] == pytest.approx(result["tokens_per_sec"] * flops)
    assert result["mfu"] == pytest.approx(
        result["model_flops_per_sec"] / result["peak_flops_per_sec"]
    )
    assert result["step_secs_median"] <= result["step_secs_p90"]
    assert 0 <= result["data_wait_frac"] < 1
    assert result["first_step_secs"] > result["compile_secs"] > 0
    assert result["host_memory_bytes"] > 1e6


def test_measure_takes_random_tokens_where_there_are_no_stores(tiny_config, monkeypatch):
    monkeypatch.setattr(stage, "open_source", None)
    result = bench.measure(tiny_config(), 1, synthetic=True)
    assert result["batch"] == "8 x 32 (random tokens)"


def test_utilisation_is_against_the_peak_of_the_dtype_and_that_of_the_recipe(
    tiny_config, monkeypatch
):
    config = tiny_config({"precision.recipe": "fp8", "precision.emulate": True})
    monkeypatch.setattr(bench, "known_peak", lambda mesh, dtype: (2e9, dtype.__name__))
    monkeypatch.setattr(bench, "recipe_peak", lambda mesh, recipe: (8e9, recipe))
    monkeypatch.setattr(bench, "measured_peak", lambda mesh, dtype: 1e9)
    monkeypatch.setattr(config_program, "flops_per_token", lambda config, program: 1e6)
    found = bench.speed(config, SimpleNamespace(mesh=None), [0.1, 0.4, 0.3], [100, 200, 100])
    assert (found["step_secs_median"], found["tokens_per_sec"]) == (0.3, pytest.approx(500))
    assert (found["mfu"], found["peak_source"]) == (pytest.approx(0.25), "bfloat16")
    assert (found["mfu_own_precision"], found["own_peak_source"]) == (pytest.approx(1 / 16), "fp8")


def test_measure_refuses_no_steps(tiny_config):
    with pytest.raises(ValueError, match="--num_steps=0 must be at least 1"):
        bench.measure(tiny_config(), 0, synthetic=True)


def test_show_prints_every_row(capsys):
    bench.show({"step_secs_median": 0.123456, "peak_source": "measured"})
    out = capsys.readouterr().out
    assert "0.1235" in out
    assert "measured" in out
