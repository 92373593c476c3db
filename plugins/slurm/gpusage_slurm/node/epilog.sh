#!/bin/sh
# gpusage's Epilog: as root on the node, stops a GPU's MPS control daemon when the last job that shared the GPU has gone.
# Whatever goes wrong, it exits with 0, because any other status takes the node out of service.
trap 'exit 0' EXIT # also if the shell itself ends the script

control=${GPUSAGE_MPS_CONTROL:-nvidia-cuda-mps-control} # may name a stand-in
root=${GPUSAGE_MPS_FOLDER:-/run/gpusage-mps}
limit_s=5
job=${SLURM_JOB_ID:-}

case $job in "" | *[!0-9]*) exit 0 ;; esac
[ -r "$root/jobs/$job" ] || exit 0

# A command that hangs in the kernel cannot be killed, but this shell can stop waiting for it.
if [ -z "${GPUSAGE_TIMED:-}" ]; then
    GPUSAGE_TIMED=yes timeout -s KILL 15 "$0" </dev/null >/dev/null 2>&1
    exit 0
fi

read -r folder <"$root/jobs/$job"
rm -f "$root/jobs/$job"
case $folder in "$root"/gpu-*) ;; *) exit 0 ;; esac
[ -d "$folder" ] || exit 0

rm -f "$folder/jobs/$job" # before the lock: a file left behind would keep the daemon running for good
{
    flock -w "$limit_s" 9 || exit 0
    rmdir "$folder/jobs" || exit 0 # another job is still there
    echo quit | CUDA_MPS_PIPE_DIRECTORY=$folder/pipe CUDA_MPS_LOG_DIRECTORY=$folder/log \
        timeout -k 1 "$limit_s" "$control" 9>&-
} 9>"$folder/lock"
exit 0
