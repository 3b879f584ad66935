"""Eight virtual CPU devices, strict promotion and one compilation cache for the whole session."""

import os
import pathlib
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
_CACHE = os.environ.get("JAX_COMPILATION_CACHE_DIR") or tempfile.mkdtemp(prefix="jaxtrain-xla-")
jax.config.update("jax_compilation_cache_dir", _CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def root_dir() -> pathlib.Path:
    """The project's root."""
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> pathlib.Path:
    """Public data and cases beside the checkout; tests that need them skip where they are absent."""
    path = ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip("no ../shared beside the project: public data and cases are not here")
    return path
