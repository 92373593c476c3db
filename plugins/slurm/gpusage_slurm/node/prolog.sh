#!/bin/sh
# gpusage's Prolog: as root on the node, lets a job share its GPU by MPS; gpusage-mps does it.
# Whatever goes wrong, it exits with 0, because any other status takes the node out of service: the job then shares the
# GPU by time slices, without MPS, and its record says why.
trap 'exit 0' EXIT # also if the shell itself ends the script

here=$(dirname "$(readlink -f "$0")")
[ ! -x "$here/usage.sh" ] || "$here/usage.sh" begin # of the job's usage

# In a job that holds a share, Slurm sets the percentage and one device: a share lies on one GPU.
[ -n "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}" ] || exit 0

for program in "$here/gpusage-mps" "$here/../../gpusage/node/dividing/gpusage-mps" "$here/../../../../core/gpusage/node/dividing/gpusage-mps"; do
    [ ! -x "$program" ] || break # beside this script, as installed, or in a checkout
done
[ -x "$program" ] || exit 0

# A job with a latency limit gets SMs of its own where the node's MPS can give them. Its user's comment has the limit.
case ,${SLURM_JOB_COMMENT:-}, in
    *[,:\ ]slo=*) GPUSAGE_DIVISION=${GPUSAGE_DIVISION:-partition} GPUSAGE_PRIORITY=0 ;;
    *) GPUSAGE_PRIORITY=1 ;;
esac
export GPUSAGE_DIVISION="${GPUSAGE_DIVISION:-percentage}" GPUSAGE_PRIORITY
export GPUSAGE_GPU="${CUDA_VISIBLE_DEVICES:-}" GPUSAGE_USER="${SLURM_JOB_UID:-0}" GPUSAGE_GROUP="${SLURM_JOB_GID:-}"
export GPUSAGE_SHARE_PERCENT="$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" GPUSAGE_LIMIT_S="${GPUSAGE_PROLOG_LIMIT_S:-8}"
"$program" enter "${SLURM_JOB_ID:-}" </dev/null >/dev/null 2>&1
exit 0
