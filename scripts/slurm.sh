#!/usr/bin/env bash
# A multi-node start under Slurm: one process per GPU, found and joined by jax.distributed.
#
#   EXTRAS=cuda12 scripts/environment.sh          once, on a file system that all nodes see
#   sbatch --nodes=4 scripts/slurm.sh --config=configs/pretrain/1b.py --workdir=/shared/runs/1b
#
# STAGE=bench and the like start another command than pretrain. All processes are told two minutes
# before the time limit, save and stop; the same sbatch line carries on from there.
#SBATCH --job-name=jaxtrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --signal=TERM@120
#SBATCH --output=%x-%j.log
set -euo pipefail

# Slurm runs a copy of this file, so the checkout is where sbatch was called.
cd "${SLURM_SUBMIT_DIR:?start this with sbatch, from the checkout}"
python=$PWD/.venv/bin/python
if [ ! -x "$python" ]; then
    echo "error: no .venv in $PWD; run EXTRAS=cuda12 scripts/environment.sh first" >&2
    exit 1
fi

export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun does not take it over by itself
# One process that cannot join or fails ends them all: the others would wait for it for ever.
exec srun --kill-on-bad-exit=1 "$python" -m "jaxtrain.${STAGE:-pretrain}" "$@"
