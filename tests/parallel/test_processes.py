import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxtrain.parallel import processes
from jaxtrain.parallel.mesh import MeshConfig

CLUSTER = ("JAX_", "SLURM_", "KUBERNETES_", "JOB_COMPLETION", "OMPI_")


@pytest.fixture
def run(root_dir):
    """Runs code in a process of its own, where no backend has started."""

    def start(code: str, **environment: str) -> tuple[int, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(CLUSTER)}
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={**clean, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root_dir), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return result.returncode, result.stdout + result.stderr.strip().split("\n")[-1]

    return start


CPU_DEVICES = """
import os
os.sched_getaffinity = lambda _: set(range(4))
import jax
from jaxtrain.parallel import processes
from jaxtrain.parallel.mesh import MeshConfig
said = processes.set_cpu_devices(MeshConfig({mesh}), {rows})
print(jax.device_count(), said)
"""


@pytest.mark.parametrize(
    ("mesh", "rows", "expected"),
    [
        ("", 8, "4 4 virtual CPU device(s): 4 core(s), batch of 8 rows"),
        ("", 6, "3 3 virtual CPU device(s)"),
        ("", 1, "1 1 virtual CPU device(s)"),
        ("tensor=2", 1, "2 2 virtual CPU device(s)"),
        ("data=1, fsdp=2", 8, "2 2 virtual CPU device(s): as the mesh asks"),
        ("data=1, fsdp=0", 8, "4 4 virtual CPU device(s)"),
        ("data=1, tensor=0", 1, "4 4 virtual CPU device(s)"),
        ("data=2, fsdp=0", 8, "4 4 virtual CPU device(s)"),
    ],
)
def test_cpu_devices_follow_cores_batch_and_mesh(run, mesh, rows, expected):
    assert run(CPU_DEVICES.format(mesh=mesh, rows=rows))[1].startswith(expected)


def test_cpu_devices_are_left_to_the_environment_where_it_decides(run):
    _, out = run(CPU_DEVICES.format(mesh="", rows=8), JAX_NUM_CPU_DEVICES="3")
    assert out.startswith("3 3 CPU device(s) by JAX_NUM_CPU_DEVICES")


@pytest.mark.parametrize("name", ["JAX_NUM_CPU_DEVICES", "JAX_NUM_PROCESSES"])
@pytest.mark.parametrize("text", ["0", "abc", ""])
def test_numbers_in_the_environment_are_checked(monkeypatch, name, text):
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=f"{name}='{text}' in the environment must be a number"):
        processes.set_cpu_devices(MeshConfig(), 8)


def test_initialize_alone_is_one_process():
    assert processes.initialize() == "one process"
    assert processes.is_primary()


def test_initialize_needs_the_number_of_processes_beside_a_coordinator(run):
    code = "from jaxtrain.parallel import processes; processes.initialize()"
    code, out = run(code, JAX_COORDINATOR_ADDRESS="127.0.0.1:1")
    assert "JAX_COORDINATOR_ADDRESS is set, so JAX_NUM_PROCESSES must be set to a number" in out
    assert code != 0


def test_initialize_that_cannot_join_is_fatal(run):
    code = (
        "import jax; from jaxtrain.parallel import processes;"
        "f = jax.distributed.initialize;"
        "jax.distributed.initialize = lambda **k: f(**k, initialization_timeout=2);"
        "processes.initialize(); print('went on alone')"
    )
    code, out = run(
        code,
        JAX_COORDINATOR_ADDRESS="127.0.0.1:9",
        JAX_NUM_PROCESSES="2",
        JAX_PROCESS_ID="1",
    )
    assert "went on alone" not in out
    assert code != 0


def test_agreed_is_the_number_alone_and_the_primarys_among_several(monkeypatch):
    assert processes.agreed(3) == 3
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    told = []

    def broadcast(number):
        told.append(number)
        return np.asarray(7, number.dtype)

    monkeypatch.setattr(processes.multihost_utils, "broadcast_one_to_all", broadcast)
    found = processes.agreed(-1)
    assert (found, type(found)) == (7, int)
    assert told == [-1]
