#!/bin/sh
# gpusage's Epilog: as root on the node, stops a GPU's MPS control daemon when the last job that shared the GPU has gone.
# Whatever goes wrong, it exits with 0: a failing epilog would take the node out of service.

control=${GPUSAGE_MPS_CONTROL:-nvidia-cuda-mps-control} # may name a stand-in
root=${GPUSAGE_MPS_FOLDER:-/run/gpusage-mps}
limit_s=5

case ${SLURM_JOB_ID:-} in "" | *[!0-9]*) exit 0 ;; esac
[ -r "$root/jobs/$SLURM_JOB_ID" ] || exit 0
read -r folder <"$root/jobs/$SLURM_JOB_ID"
rm -f "$root/jobs/$SLURM_JOB_ID"
case $folder in "$root"/gpu-*) ;; *) exit 0 ;; esac
[ -d "$folder" ] || exit 0

rm -f "$folder/jobs/$SLURM_JOB_ID" # before the lock: a job left behind would keep the daemon for good
{
    flock -w "$limit_s" 9 2>/dev/null || exit 0
    rmdir "$folder/jobs" 2>/dev/null || exit 0 # another job is still there
    echo quit | CUDA_MPS_PIPE_DIRECTORY=$folder/pipe CUDA_MPS_LOG_DIRECTORY=$folder/log \
        timeout -k 1 "$limit_s" "$control" >/dev/null 2>&1 9>&-
} 9>"$folder/lock"
exit 0
