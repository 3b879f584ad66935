"""scripts/gpu_check: its dry run; that it finds what fell back, hung, died or diverged."""

import importlib
import json
import math
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain import config_program
from jaxtrain.losses.xent import cross_entropy
from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.planning import aot
from jaxtrain.types import Batch

MODULES = ("__main__", "checks", "fallbacks", "part", "plan", "processes", "report")


@pytest.fixture(scope="module")
def parts(root_dir):
    """The script's own modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root_dir / "scripts"))
        yield SimpleNamespace(
            **{name.strip("_"): importlib.import_module(f"gpu_check.{name}") for name in MODULES}
        )


# --- the whole of it ---


@pytest.mark.slow
def test_dry_run_makes_every_check_that_needs_no_gpu_and_names_the_others(
    root_dir, parts, tmp_path
):
    done = subprocess.run(
        [str(root_dir / "scripts" / "gpu_check.sh"), "--dry", "--output=found/it.json"],
        cwd=tmp_path,
        env=os.environ
        | {
            "PYTHON": sys.executable,
            "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir or "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "found" / "it.json").read_text())
    assert (result["mode"], result["ok"], result["failures"]) == ("dry", True, [])
    assert result["machine"]["device"] == "cpu"
    assert result["machine"]["versions"]["jax"] == jax.__version__
    assert re.fullmatch("[0-9a-f]{40}( with changes)?|unknown", result["commit"])
    assert set(result["parts"]) == {*parts.main.BUDGETS, "fp8_against_bfloat16"}
    steps = parts.plan.DRY.num_steps
    for name in ("dense_bfloat16", "dense_fp8", "moe_bfloat16", "moe_fp8"):
        part = result["parts"][name]
        assert len(part["losses"]) == steps
        assert part["least_loss"] < part["last_loss"] < part["guess_loss"] < part["losses"][0]
        assert part["attention"].startswith("chunked: ")
        assert part["mfu"] > 0
        assert part["step_secs_median"] > 0
        assert part["program_bytes"] > part["argument_bytes"] > 0
        assert part["precision"].startswith("fp8" if name.endswith("fp8") else "weight matmuls in")
        assert f"{name}: no matmul or kernel fell back: no GPU" in result["not_checked"]
    assert result["parts"]["experts"]["chosen_of_all"] == 0.5
    rows = [row for part in result["parts"].values() for row in part["checks"]]
    counts = [sum(row["result"] == kind for row in rows) for kind in ("passed", "not checked")]
    assert counts == [result["num_passed"], len(result["not_checked"])]
    assert min(counts) > 10
    assert "0 failed" in done.stdout


def test_machine_without_a_gpu_is_told_of_the_dry_run(parts, monkeypatch, capsys):
    monkeypatch.setattr(parts.main.startup, "uses_gpu", lambda: False)
    message = refusal(parts, monkeypatch, capsys)
    assert message.startswith("error: jax would not run on an NVIDIA GPU here")
    assert "--dry" in message


@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("--output={here}", "error: --output={here} cannot be written; name a file in a folder"),
        ("--output={here}/file/a.json", "error: --output={here}/file/a.json: "),
        ("--seconds=0", "error: --seconds=0 must be more than 0"),
    ],
)
def test_what_could_not_be_done_is_refused_before_anything_runs(
    parts, monkeypatch, capsys, tmp_path, flag, line
):
    (tmp_path / "file").touch()
    message = refusal(parts, monkeypatch, capsys, "--dry", flag.format(here=tmp_path))
    assert message.startswith(line.format(here=tmp_path))


def refusal(parts, monkeypatch, capsys, *flags):
    """The one line of a command that is refused."""
    monkeypatch.setattr(sys, "argv", ["gpu_check", *flags])
    monkeypatch.setattr(parts.main, "check", None)
    with pytest.raises(SystemExit) as ended:
        parts.main.main()
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


# --- text to learn ---


def test_batches_are_a_chain_whose_entropy_is_what_is_said(parts):
    scale = parts.plan.DRY
    batches = list(scale.batches())
    assert len(batches) == scale.num_steps
    first, second = (np.concatenate([np.ravel(b) for b in column]) for column in zip(
        *((batch.inputs, batch.targets) for batch in batches), strict=True))  # fmt: skip
    counts = np.zeros((scale.num_ids, scale.num_ids))
    np.add.at(counts, (first, second), 1)
    shares = counts / counts.sum(1, keepdims=True)
    entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum(1).mean()
    assert entropy == pytest.approx(scale.least_nats, rel=0.05)  # some thousand draws
    each = counts.sum(1) / counts.sum()
    assert -(each * np.log(each)).sum() == pytest.approx(scale.guess_nats, rel=0.01)
    again = next(scale.batches())
    np.testing.assert_array_equal(again.inputs, batches[0].inputs)
    np.testing.assert_array_equal(again.inputs[:, 1:], again.targets[:, :-1])


# --- what has fallen back ---


class Program:
    """The text of a compiled step with one matmul or kernel for each thing that is looked for."""

    def __init__(self, config):
        self.config, self.lines = config, []

    def call(self, target, operands, result="bf16[8]", name="", config="{}"):
        names = []
        for shape in operands:
            names.append(f"%x{len(self.lines)}")
            self.lines.append(f"{names[-1]} = {shape} constant({{...}})")
        self.lines.append(
            f"%y{len(self.lines)} = {result} custom-call({', '.join(names)}), "
            f'custom_call_target="{target}", metadata={{op_name="jit(step)/{name}"}}, '
            f"backend_config={config}"
        )

    def matmul(self, lhs, rhs, flops, times=8):
        """Of `flops` in so many parts, with as many rows as there are tokens."""
        tokens = self.config.data.batch_size * self.config.data.seq_len
        terms = round(flops / 2 / tokens / times)
        kernel = "__cublas$lt$matmul" + ("$f8" if lhs.startswith("f8") else "")
        numbers = '"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]'
        operands = (f"{lhs}[{tokens},{terms}]{{1,0}}", f"{rhs}[{terms},1]{{1,0}}")
        numbers = f'{{"gemm_backend_config":{{"dot_dimension_numbers":{{{numbers}}}}}}}'
        for _ in range(times):
            self.call(kernel, operands, f"bf16[{tokens},1]{{1,0}}", config=numbers)

    @property
    def text(self):
        body = "\n".join(f"  {line}" for line in self.lines)
        return f"HloModule jit_step\n\nENTRY %main () -> bf16[8] {{\n{body}\n}}\n"


def compiled(parts, model, fault=""):
    """(config, text) of a step in FP8 as it should be, but for one fault."""
    config = parts.plan.DRY.config(model, "fp8", emulate=True)
    program, layers = Program(config), config.model.num_layers
    weights = parts.fallbacks.matmul_params(config.model)
    in_matmuls = weights["attention"] + (weights["ffn"] if model == "dense" else 0)
    tokens = config.data.batch_size * config.data.seq_len
    one = 2.0 * tokens * in_matmuls / layers  # of one layer, the other is excluded
    e4m3, e5m2 = ("bf16", "bf16") if fault == "bfloat16" else ("f8e4m3fn", "f8e5m2")
    program.matmul(e4m3, e4m3, one)
    program.matmul(e5m2, e4m3, one)
    program.matmul(e4m3, "bf16" if fault == "gradient" else e5m2, one)
    rest, wide = 3 * one + 6.0 * tokens * weights["head"], "f32" if fault == "float32" else "bf16"
    program.matmul(wide, wide, 2 * rest if fault == "work twice" else rest)
    for _ in range(layers):
        if fault != "no attention":
            program.call("__cudnn$fmhaSoftmax", ["bf16[8,8]{1,0}"])
        if fault not in ("no attention", "no backward"):
            program.call("__cudnn$fmhaSoftmaxBackward", ["bf16[8,8]{1,0}"])
    if fault == "scores":
        length = config.data.seq_len
        program.call("", [f"f32[4,{length},{length}]{{2,1,0}}"])
    if model == "moe":
        experts(program, layers, fault)
    if fault == "all experts":
        m = config.model
        program.matmul("bf16", "bf16", 2.0 * tokens * m.num_experts * m.d_model * m.expert_dim, 1)
    return config, program.text


def experts(program, layers, fault):
    for layer in range(layers):
        low = ("bf16",) * 2 if layer == 0 or fault == "experts in bfloat16" else ("f8e4m3fn",) * 2
        operands = [f"{dtype}[4,16,16]{{2,1,0}}" for dtype in low]
        kernels = {"grouped_product_kernel": 6, "grouped_of_matrices_kernel": 3}
        for name, runs in kernels.items() if fault != "no kernel" else ():
            for _ in range(runs):
                program.call("__gpu$xla.gpu.triton", operands, name=f"{name}/pallas_call")
            if fault == "experts' gradients in bfloat16":  # beside outputs that are computed twice
                wide = ["bf16[4,16,16]{2,1,0}"] * 2
                program.call("__gpu$xla.gpu.triton", wide, name=f"{name}/pallas_call")


def failures(parts, config, attention, text):
    checks = parts.checks.Checks()
    parts.fallbacks.prove(config, attention, text, checks)
    return [f"{row['what']}: {row['found']}" for row in checks.rows if row["result"] == "failed"]


@pytest.mark.parametrize("model", ["dense", "moe"])
def test_program_that_is_as_it_should_be_passes(parts, model):
    config, text = compiled(parts, model)
    assert failures(parts, config, "cudnn", text) == []


@pytest.mark.parametrize(
    ("model", "fault", "line"),
    [
        ("dense", "bfloat16", "outputs of 1 layers' matrices are FP8 matmuls (f8e4m3fn × f8e4m3fn)"
         ": 0 TFLOP in FP8 of"),
        ("dense", "gradient", "gradients of 1 layers' matrices are FP8 matmuls"),
        ("dense", "float32", "matmuls are not in float32"),
        ("dense", "no attention", "attention is cudnn's kernel in each of 2 layers, forward and "
         "backward: kernels run 0, 0 times"),
        ("dense", "no backward", "kernels run 2, 0 times"),
        ("dense", "scores", "no array has 64 × 64 scores: f32[4,64,64]"),
        ("moe", "no kernel", "dropless experts are the grouped matmul kernel in each of 2 layers: "
         "products run 0 times (at least 12), gradients of matrices 0 (at least 6)"),
        ("moe", "experts in bfloat16", "kernels of 1 layers take FP8: 0 runs of at least 6"),
        ("moe", "experts' gradients in bfloat16", "FP8: 6 runs of at least 6; 8 others, for 1"),
        ("moe", "all experts", "no matmul is as large as one of all experts' on all tokens"),
        ("dense", "work twice", "XLA's matmuls are the model's arithmetic and not several times"),
    ],
)  # fmt: skip
def test_what_has_fallen_back_is_found_and_named(parts, model, fault, line):
    config, text = compiled(parts, model, fault)
    found = failures(parts, config, "cudnn", text)
    assert any(line in each for each in found), found


def test_kernel_that_the_report_does_not_name_is_a_failure(parts):
    config, text = compiled(parts, "dense")
    assert "attention is chunked, without a kernel: 4 runs" in failures(
        parts, config, "chunked", text
    )
    (line,) = failures(parts, config, "pallas", text)
    assert line.endswith("kernels run 0, 0, 0 times")


@pytest.mark.aot
@pytest.mark.slow
@pytest.mark.usefixtures("gpu_compiler")
def test_program_compiled_for_a_gpu_passes(parts):
    """The mixture in miniature, its heads and widths such as tensor cores take."""
    shape = parts.plan.Scale(
        model={
            "vocab_size": 256, "num_layers": 2, "d_model": 128, "num_heads": 4, "num_kv_heads": 2,
            "head_dim": 32, "d_ff": 256, "attention": "pallas",
        },
        experts={
            **parts.plan.FULL.experts, "num_layers": 2, "num_experts": 4, "d_ff_expert": 256,
            "num_experts_per_token": 2,
        },
        rows=2, length=512, num_steps=2, num_ids=16, lr=1e-3, exclude=("layers.0.*",),
    )  # fmt: skip
    config = shape.config("moe", "fp8", emulate=False)
    mesh = make_mesh(MeshConfig(), aot.compile_only_devices("h100", 1))
    program = config_program.make_program(config, cross_entropy(config.loss), mesh, platform="gpu")
    ints, floats = (jax.ShapeDtypeStruct((2, 512), d) for d in (jnp.int32, jnp.float32))
    lowered = program.lower(Batch(ints, ints, floats, ints, ints), platform="cuda")
    text = aot.compile_program(lowered, triton_gemm=False).as_text()
    assert failures(parts, config, "pallas", text) == []
    assert len(failures(parts, config, "cudnn", text)) == 1


# --- what hangs, dies or does not learn ---


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("sleep 60", "it ran past the 1 s that it had"),
        ("kill -SEGV $$", "its process ended with signal SIGSEGV"),
        ("echo one >&2; echo two >&2; exit 3", "its process ended with status 3: one | two"),
    ],
)
def test_part_that_hangs_or_dies_is_a_failure_and_nothing_more(
    parts, tmp_path, monkeypatch, script, line
):
    python = tmp_path / "python"
    python.write_text(f"#!/usr/bin/env bash\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    found = parts.processes.run_part("dry", ["a", "b"], 1.0, tmp_path)
    assert found["parts"]["a"]["error"].startswith(line)
    assert found["parts"]["b"]["error"] == f"not run; a: {found['parts']['a']['error']}"
    result = parts.report.of_parts("gpu", found["machine"], found["parts"], 1.0)
    assert not result["ok"]
    assert any(each.startswith(f"a: {line}") for each in result["failures"])
    assert "FAILED: a: " in parts.report.text(result)


def test_part_without_time_is_not_run_and_fails(parts, tmp_path):
    found = parts.processes.run_part("gpu", ["a"], -1.0, tmp_path)
    assert found["parts"]["a"]["error"] == "there was no time left for it"


def test_error_of_a_part_is_one_line_in_its_result(parts, monkeypatch):
    def broken(machine, checks):
        checks.expect("the first thing", True, "it is")
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore")

    monkeypatch.setattr(parts.part, "PARTS", {"broken": broken})
    found = parts.part.run("broken", SimpleNamespace())
    assert found["error"].startswith("out of device memory; is another process using the GPU?")
    assert "\n" not in found["error"]
    assert [row["result"] for row in found["checks"]] == ["passed"]


def trained(loss):
    return {"last_loss": loss, "step_secs_median": 0.3, "checks": []}


@pytest.mark.parametrize(("loss", "holds"), [(2.08, True), (2.2, False), (math.nan, False)])
def test_fp8_that_learns_otherwise_than_bfloat16_fails(parts, loss, holds):
    found = {"dense_bfloat16": trained(2.0), "dense_fp8": trained(loss)}
    result = parts.report.of_parts("gpu", {}, found, 1.0)
    assert result["ok"] == holds
    assert result["parts"]["fp8_against_bfloat16"]["dense_step_ratio"] == 1.0
    assert result["not_checked"] == [
        "fp8_against_bfloat16: moe: FP8 learns as bfloat16 does: one of the two has no losses"
    ]
