"""GPUs to plan for: what XLA has to know of one to compile for it, and its peaks.

Figures are NVIDIA's: data sheets of the SXM parts (without sparsity) and device queries.
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Target:
    """One kind of GPU."""

    name: str
    device_kind: str  #: as the driver calls it
    compute_capability: tuple[int, int]
    num_cores: int  #: streaming multiprocessors
    memory_bytes: int
    memory_bytes_per_sec: int
    l2_bytes: int
    clock_ghz: float
    shared_bytes_per_core: int
    shared_bytes_per_block: int
    fpus_per_core: int
    bf16_tflops: float  #: dense
    fp8_tflops: float | None  #: dense; None: has no such format
    fp4_tflops: float | None
    nvlink_bytes_per_sec: float  #: of one GPU, one direction
    network_bytes_per_sec: float  #: as usually installed, of one GPU, one direction

    @property
    def description(self) -> str:
        """XLA's `GpuTargetConfigProto` as text.

        Without the versions and, from compute capability 9.0 on, the accelerated features, XLA
        multiplies FP8 in bfloat16 and says nothing.
        """
        major, minor = self.compute_capability
        extension = "feature_extension: ACCELERATED_FEATURES" if major >= 9 else ""
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
              shared_memory_per_core: {self.shared_bytes_per_core}
              shared_memory_per_block_optin: {self.shared_bytes_per_block}
              threads_per_core_limit: 2048 core_count: {self.num_cores}
              fpus_per_core: {self.fpus_per_core}
              block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
              memory_bandwidth: {self.memory_bytes_per_sec} l2_cache_size: {self.l2_bytes}
              clock_rate_ghz: {self.clock_ghz} device_memory_size: {self.memory_bytes}
              registers_per_core_limit: 65536 registers_per_block_limit: 65536
              cuda_compute_capability {{ major: {major} minor: {minor} {extension} }}
              runtime_version: "12.9.0" driver_version: "12.9.0"
              compile_time_toolkit_version: "12.9.0"
            }}
            platform_name: "CUDA"
            dnn_version_info {{ major: 9 minor: 10 }}
            device_description_str: "{self.device_kind}"
        """


_HOPPER = {
    "compute_capability": (9, 0),
    "num_cores": 132,
    "l2_bytes": 52_428_800,
    "clock_ghz": 1.98,
    "shared_bytes_per_core": 233_472,
    "shared_bytes_per_block": 232_448,
    "fpus_per_core": 128,
    "bf16_tflops": 989.0,
    "fp8_tflops": 1979.0,
    "fp4_tflops": None,
    "nvlink_bytes_per_sec": 450e9,
    "network_bytes_per_sec": 50e9,
}

TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target(
            name="h100",
            device_kind="NVIDIA H100 80GB HBM3",
            memory_bytes=84_942_979_072,
            memory_bytes_per_sec=3_352_320_000_000,
            **_HOPPER,
        ),
        Target(
            name="h200",
            device_kind="NVIDIA H200",
            memory_bytes=151_397_597_184,
            memory_bytes_per_sec=4_800_000_000_000,
            **_HOPPER,
        ),
        Target(
            name="b200",
            device_kind="NVIDIA B200",
            compute_capability=(10, 0),
            num_cores=148,
            memory_bytes=191_514_411_008,
            memory_bytes_per_sec=7_672_320_000_000,
            l2_bytes=132_644_864,
            clock_ghz=1.965,
            shared_bytes_per_core=233_472,
            shared_bytes_per_block=232_448,
            fpus_per_core=128,
            bf16_tflops=2250.0,
            fp8_tflops=4500.0,
            fp4_tflops=9000.0,
            nvlink_bytes_per_sec=900e9,
            network_bytes_per_sec=50e9,
        ),
        Target(
            name="a100",
            device_kind="NVIDIA A100-SXM4-80GB",
            compute_capability=(8, 0),
            num_cores=108,
            memory_bytes=85_100_068_864,
            memory_bytes_per_sec=2_039_040_000_000,
            l2_bytes=41_943_040,
            clock_ghz=1.41,
            shared_bytes_per_core=167_936,
            shared_bytes_per_block=166_912,
            fpus_per_core=64,
            bf16_tflops=312.0,
            fp8_tflops=None,
            fp4_tflops=None,
            nvlink_bytes_per_sec=300e9,
            network_bytes_per_sec=25e9,
        ),
    )
}


def get_target(name: str) -> Target:
    """The target of that name.

    Raises:
      ValueError: for an unknown name, listing the known ones.
    """
    if name not in TARGETS:
        raise ValueError(f"target {name!r} must be one of {', '.join(TARGETS)}.")
    return TARGETS[name]
