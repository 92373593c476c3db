#!/bin/sh
# Begins and ends the sampling of a job's GPU: "usage.sh begin" from the prolog, "usage.sh end" from the epilog, as root.
# "usage.sh python" prints the Python that samples. Where none has gpusage, nothing is sampled. It waits for nothing and
# never fails.
trap 'exit 0' EXIT
exec 2>/dev/null

# The Python of the installation that this script belongs to, or of a checkout.
here=$(dirname "$(readlink -f "$0")")
for python in "${GPUSAGE_PYTHON:-}" "$here/../../../../../bin/python3" "$here/../../../../../bin/python" \
    "$here/../../../../.venv/bin/python"; do
    [ ! -x "$python" ] || break
done
[ -x "$python" ] || python=
if [ "${1:-}" = python ]; then
    echo "$python"
    exit 0
fi

[ -n "${CUDA_VISIBLE_DEVICES:-}${SLURM_JOB_GPUS:-}" ] || exit 0
[ -n "${SLURMD_NODENAME:-}" ] || exit 0
folder=${GPUSAGE_USAGE_FOLDER:-/run/gpusage-usage}
[ "$(id -u)" = 0 ] || folder=${GPUSAGE_USAGE_FOLDER:-/tmp/gpusage-usage-$(id -u)}

pid_file=$folder/${SLURM_CLUSTER_NAME:-}.$SLURMD_NODENAME.${SLURM_JOB_ID:-none}.pid

if [ "${1:-}" = end ]; then
    # Nothing in another user's folder is read: a FIFO there would be waited for.
    [ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] && [ -f "$pid_file" ] && [ ! -L "$pid_file" ] || exit 0
    read -r pid <"$pid_file"
    case $pid in *[!0-9]*) pid= ;; esac
    rm -f "$pid_file"
    # The number may be another process's by now.
    if tr '\0' ' ' <"/proc/${pid:-none}/cmdline" | grep -q gpusage_slurm.usage.node; then kill -TERM "$pid"; fi
    exit 0
fi

mkdir -m 700 "$folder"
[ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] || exit 0
cd / || exit 0 # Python looks for modules where it starts, and slurmd's folder may be somebody else's than root's
[ -n "$python" ] || exit 0
# slurmd kills what is left of a prolog's own session at the prolog's end, so the program begins in another one.
PYTHONDONTWRITEBYTECODE=1 setsid sh -c '"$1" -s -m gpusage_slurm.usage.node & echo $! >"$2"' \
    sh "$python" "$pid_file" </dev/null >/dev/null 2>&1
exit 0
