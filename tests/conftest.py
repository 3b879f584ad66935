"""Eight virtual CPU devices, strict promotion and one compilation cache for the whole session."""

import dataclasses
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

# Before jax is imported. Processes that tests start inherit all of it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import hypothesis
import jax
import numpy as np
import pytest

from jaxtrain import config as config_lib
from jaxtrain.data.store import Tokenization
from jaxtrain.data.writer import PartWriter, create
from jaxtrain.planning import aot
from jaxtrain.run_config import RunConfig
from tests.runs import ROOT, TINY_RUN, TINY_VOCAB, Launcher
from tests.stages import Stages

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Also of the processes that the tests are shared out among (`pytest -n 2`).
_OWN_CACHE = None
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _OWN_CACHE = tempfile.mkdtemp(prefix="jaxtrain-xla-")
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("untimed")


def pytest_unconfigure() -> None:
    """Removes the compilation cache that this process has made."""
    if _OWN_CACHE:
        shutil.rmtree(_OWN_CACHE, ignore_errors=True)


@pytest.fixture(scope="session")
def root_dir() -> pathlib.Path:
    """The project's root."""
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> pathlib.Path:
    """Public data and cases beside the checkout; tests of them skip where they are absent."""
    path = ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip("no ../shared beside the project: public data and cases are not here")
    return path


@pytest.fixture(scope="session")
def gpu_compiler() -> None:
    """XLA's GPU compiler; what compiles ahead of time skips where it is absent."""
    lacking = aot.missing()
    if lacking:
        pytest.skip(lacking)


@pytest.fixture(scope="session")
def tiny_stores(tmp_path_factory) -> dict[str, str]:
    """Paths of three stores of documents in which each id mostly follows from the one before."""
    rng = np.random.default_rng(0)
    tokenization = Tokenization(TINY_VOCAB, {"bos": 0, "eos": 1, "mask": 2}, "t" * 64, {})
    paths = {}
    for name, num_documents in (("a", 90), ("b", 40), ("heldout", 12)):
        paths[name] = str(tmp_path_factory.mktemp(name))
        with PartWriter(paths[name], tokenization) as writer:
            for number in range(num_documents):
                length = int(rng.integers(3, 70))
                steps = rng.choice([1, 2, 5], length, p=[0.8, 0.15, 0.05])
                ids = np.concatenate([[0], 3 + (rng.integers(60) + np.cumsum(steps)) % 60, [1]])
                writer.add(
                    ids,
                    document_id=f"{name}-{number}",
                    source=f"{name}.jsonl:{number}",
                    num_text_bytes=2 * length,
                )
        create(paths[name], tokenization, name * 32, writer.parts)
    return paths


@pytest.fixture(scope="session")
def tiny_flags(tiny_stores) -> list[str]:
    """The command-line flags of the tiny run."""
    return [
        f"--config={TINY_RUN}",
        *(f"--config.data.sources.{name}.path={tiny_stores[name]}" for name in "ab"),
    ]


@pytest.fixture(scope="session")
def tiny_config(tiny_stores):
    """Makes the tiny run's `RunConfig` with overrides by dotted path."""

    def make(overrides: Mapping[str, Any] | None = None, **sections: Any) -> RunConfig:
        paths = [(f"data.sources.{name}.path", tiny_stores[name]) for name in "ab"]
        texts = [(path, str(value)) for path, value in (overrides or {}).items()]
        config = config_lib.resolve(
            RunConfig, config_lib.load(RunConfig, str(TINY_RUN), paths + texts)
        )
        return dataclasses.replace(config, **sections)

    return make


@pytest.fixture
def launcher(tiny_flags) -> Launcher:
    """Starts the tiny run."""
    return Launcher(tiny_flags)


@pytest.fixture(scope="session")
def stages(tmp_path_factory) -> Stages:
    """Every training stage on eight rows; its stores, models and starts are made once."""
    return Stages(tmp_path_factory.mktemp("stages"))
