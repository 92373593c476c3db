#!/bin/sh
# gpusage's Prolog: as root on the node, starts an MPS control daemon for the GPU that a job shares, one daemon a GPU.
# Whatever goes wrong, it exits with 0: the job then shares the GPU by time slices, without MPS.

control=${GPUSAGE_MPS_CONTROL:-nvidia-cuda-mps-control} # may name a stand-in
root=${GPUSAGE_MPS_FOLDER:-/run/gpusage-mps}
deadline=$(($(date +%s) + 8)) # for all of it: slurmd waits for us, and a GPU may hang

# Print the whole seconds left, at least 1.
left() {
    now=$(date +%s)
    echo $((deadline - now > 1 ? deadline - now : 1))
}

# Slurm sets the percentage in a job that holds a share, and one device: a share lies on one GPU.
device=${CUDA_VISIBLE_DEVICES:-}
[ -n "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}" ] && [ -n "${SLURM_JOB_ID:-}" ] || exit 0
case $device in "" | *[!A-Za-z0-9-]*) exit 0 ;; esac
case $SLURM_JOB_ID in *[!0-9]*) exit 0 ;; esac
command -v "$control" >/dev/null 2>&1 || exit 0

# An identifier means the same to everybody; a number depends on who counts.
case $device in
    *[!0-9]*) ;;
    *)
        found=$(timeout -k 1 "$(left)" nvidia-smi -i "$device" --query-gpu=uuid --format=csv,noheader 2>/dev/null)
        case $found in GPU-*) device=$found ;; esac
        ;;
esac

folder=$root/gpu-$device
umask 022
mkdir -p "$folder/pipe" "$folder/log" "$folder/jobs" "$root/jobs" 2>/dev/null || exit 0

mps() {
    CUDA_MPS_PIPE_DIRECTORY=$folder/pipe CUDA_MPS_LOG_DIRECTORY=$folder/log CUDA_VISIBLE_DEVICES=$device \
        CUDA_DEVICE_ORDER=PCI_BUS_ID timeout -k 1 "$(left)" "$control" "$@" 9>&-
}

# Start the daemon for several users; one that serves a single user makes everybody else's job wait for that user's.
start() {
    unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE # the daemon would take it as every client's ceiling
    mps -d -multiuser-server </dev/null >/dev/null 2>&1 && echo any >"$folder/user" && return 0
    mps -d </dev/null >/dev/null 2>&1 && echo "${SLURM_JOB_UID:-0}" >"$folder/user"
}

{
    flock -w "$(left)" 9 2>/dev/null || exit 0
    echo get_server_list | mps >/dev/null 2>&1 || start || exit 0
    read -r user <"$folder/user" || user=any
    if [ "$user" = any ] || [ "$user" = "${SLURM_JOB_UID:-0}" ]; then
        : >"$folder/jobs/$SLURM_JOB_ID" && echo "$folder" >"$root/jobs/$SLURM_JOB_ID"
    fi
} 9>"$folder/lock"
exit 0
