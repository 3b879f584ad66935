#!/usr/bin/env bash
# Whether this project is right and fast on the GPU of this machine: one run of at most 8 minutes,
# one verdict, and all figures as JSON (docs/gpu-check.md). Wants one NVIDIA GPU of 80 GB or more.
#
#   scripts/gpu_check.sh [--output=FILE.json] [--seconds=480]
#   scripts/gpu_check.sh --dry                    the same in miniature on the CPU
#   scripts/gpu_check.sh --compile_for=h100       compiles for that GPU without one; runs nothing
#   PYTHON=python3 scripts/gpu_check.sh           an interpreter that has jax already, used as it is
#
# Without PYTHON it runs in the environment of the other scripts, with jax for CUDA installed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-$("$root/scripts/environment.sh" cuda12)}
export PYTHONPATH=$root:$root/scripts${PYTHONPATH:+:$PYTHONPATH}
exec "$python" -m gpu_check "$@"
