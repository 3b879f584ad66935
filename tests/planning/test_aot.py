"""Compiles for GPUs where XLA's GPU compiler is installed; nothing runs."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain.parallel.mesh import MeshConfig, make_mesh
from jaxtrain.planning import aot, hlo

NUM_LAYERS, ROWS, WIDTH = 6, 2048, 512


@pytest.mark.parametrize(("found", "why"), [(None, "is not installed"), ("0.1", "0.1 is not of")])
def test_missing_compiler_is_one_line_that_says_what_to_install(monkeypatch, found, why):
    version = aot.importlib.metadata.version

    def of(name):
        if name == "jaxlib":
            return version(name)
        if found is None:
            raise aot.importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(aot.importlib.metadata, "version", of)
    with pytest.raises(ValueError, match=why) as error:
        aot.compile_only_devices("h100", 8)
    packages = " ".join(f"{name}=={version('jaxlib')}" for name in aot.PACKAGES)
    assert str(error.value).endswith(f"pip install {packages}")
    assert "\n" not in str(error.value)


def test_gpus_that_hosts_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="6 GPUs must be a multiple of 4 hosts"):
        aot.compile_only_devices("h100", 6, num_hosts=4)


@pytest.mark.aot
@pytest.mark.usefixtures("gpu_compiler")
def test_program_compiled_for_gpus_has_the_flops_and_collectives_of_its_arithmetic():
    """A loop over layers on two GPUs that split the rows, and its gradient."""
    mesh = make_mesh(MeshConfig(data=2), aot.compile_only_devices("h100", 2))

    def abstract(shape, dtype, *spec):
        where = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    def loss(w, x):
        last, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)
        return jnp.sum(last.astype(jnp.float32))

    w = abstract((NUM_LAYERS, WIDTH, WIDTH), jnp.bfloat16)
    x = abstract((ROWS, WIDTH), jnp.bfloat16, "data")
    step = jax.jit(jax.grad(loss), out_shardings=w.sharding)
    lowered = step.trace(w, x).lower(lowering_platforms=("cuda",))
    found = hlo.read(aot.compile_program(lowered, triton_gemm=False).as_text())
    assert {each.kernel for each in found.matmuls} == {"__cublas$lt$matmul"}
    # Output, gradient of the input and of the weight; each GPU has half of the rows.
    assert found.flops == 3 * NUM_LAYERS * 2 * (ROWS // 2) * WIDTH * WIDTH
    assert found.collective_bytes() == {"all-reduce": NUM_LAYERS * WIDTH * WIDTH * 2}
