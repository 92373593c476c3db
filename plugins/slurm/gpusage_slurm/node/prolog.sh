#!/bin/sh
# gpusage's Prolog: as root on the node, lets a job share its GPU by MPS; gpusage-mps does it.
# Whatever goes wrong, it exits with 0, because any other status takes the node out of service: the job then shares the
# GPU by time slices, without MPS, and its record says why.
#
# Slurm places a share beside whichever job. One that would start on another user's GPU goes back to the queue before its
# program runs (turn_back.sh): slurmd starts nothing of a job that is requeued during its prolog.
trap 'exit 0' EXIT # also if the shell itself ends the script

# A prolog has no PATH. Commands of a site's own Slurm, and of a sandbox's, lie beside its slurmd or slurm.conf.
PATH=${PATH:-/usr/bin:/bin} process=$PPID
while [ "${process:-1}" -gt 1 ]; do
    daemon=$(readlink -f "/proc/$process/exe")
    case ${daemon##*/} in slurm*) PATH=$PATH:${daemon%/*}/../bin && break ;; esac
    process=$(sed 's/.*) . \([0-9]*\) .*/\1/' "/proc/$process/stat")
done
PATH=$PATH:$(dirname "$(dirname "${SLURM_CONF:-/usr/bin/none}")")/bin:/usr/local/bin:/opt/slurm/bin
export PATH

here=$(dirname "$(readlink -f "$0")")
sample() { [ ! -x "$here/usage.sh" ] || "$here/usage.sh" begin; }
root=${GPUSAGE_MPS_FOLDER:-/run/gpusage-mps} job=${SLURM_JOB_ID:-}
rm -f "$root/granted/${job:-none}".* "$root/walls/$job" # of an earlier start, or of an older job with this number

# In a job that holds a share, Slurm sets the percentage and one device: a share lies on one GPU.
for program in "$here/gpusage-mps" "$here/../../gpusage/node/dividing/gpusage-mps" "$here/../../../../core/gpusage/node/dividing/gpusage-mps"; do
    [ ! -x "$program" ] || break # beside this script, as installed, or in a checkout
done
if [ -z "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}" ] || [ ! -x "$program" ]; then
    sample
    exit 0
fi

# A job with a latency limit gets SMs of its own where the node's MPS can give them. Its user's comment has the limit.
case ,${SLURM_JOB_COMMENT:-}, in
    *[,:\ ]slo=*) GPUSAGE_DIVISION=${GPUSAGE_DIVISION:-partition} GPUSAGE_PRIORITY=0 ;;
    *) GPUSAGE_PRIORITY=1 ;;
esac
export GPUSAGE_DIVISION="${GPUSAGE_DIVISION:-percentage}" GPUSAGE_PRIORITY
export GPUSAGE_GPU="${CUDA_VISIBLE_DEVICES:-}" GPUSAGE_USER="${SLURM_JOB_UID:-0}" GPUSAGE_GROUP="${SLURM_JOB_GID:-}"
export GPUSAGE_SHARE_PERCENT="$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" GPUSAGE_LIMIT_S="${GPUSAGE_PROLOG_LIMIT_S:-8}"
enter() { "$program" enter "$job" </dev/null >/dev/null 2>&1; }
enter
if [ $? = 3 ]; then
    "$here/turn_back.sh" "$program" </dev/null >/dev/null 2>&1 && exit 0
    # Without those whose epilog never came; or beside the others, as it must run.
    enter
    [ $? != 3 ] || GPUSAGE_WITH_OTHERS=yes "$program" enter "$job" </dev/null >/dev/null 2>&1
fi
sample
exit 0
