"""What starting a stage loads. Who may import whom is in pyproject.toml, held by import-linter."""

import importlib.util
import pkgutil
import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "tensorflow",
    "transformers",
    "wandb",
    "transformer_engine",
    "boto3",
    "google.cloud",
)


def _loaded_by(*modules: str, root) -> set[str]:
    """Names of all modules that a fresh process has loaded after importing `modules`."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def _modules_of(package: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    names = [info.name for info in pkgutil.iter_modules(spec.submodule_search_locations)]
    return [package, *(f"{package}.{name}" for name in names)]


def test_corpus_and_tokenizer_run_without_jax(root_dir):
    modules = _modules_of("jaxtrain.corpus") + _modules_of("jaxtrain.tokenizer")
    assert len(modules) > 4
    assert not {"jax", "jaxlib"} & _loaded_by(*modules, root=root_dir)


@pytest.mark.parametrize("launcher", ["jaxtrain.prepare", "jaxtrain.tokenize"])
def test_text_stages_start_without_jax(launcher, root_dir):
    assert not {"jax", "jaxlib"} & _loaded_by(launcher, root=root_dir)


def test_pretraining_loads_nothing_heavy(root_dir):
    loaded = _loaded_by("jaxtrain.pretrain", root=root_dir)
    assert "jax" in loaded
    assert [name for name in HEAVY if name in loaded] == []
