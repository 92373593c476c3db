#!/bin/sh
# gpusage's Prolog: as root on the node, starts an MPS control daemon for the GPU that a job shares, one daemon per GPU.
# Whatever goes wrong, it exits with 0, because any other status takes the node out of service: the job then shares the
# GPU by time slices, without MPS.
trap 'exit 0' EXIT # also if the shell itself ends the script, as when a redirection of a special built-in fails

# In a job that holds a share, Slurm sets the percentage and one device: a share lies on one GPU.
[ -n "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}" ] || exit 0

limit_s=${GPUSAGE_PROLOG_LIMIT_S:-8} # for the whole script: slurmd waits for it, and a GPU may hang
# A command that hangs in the kernel cannot be killed, but this shell can stop waiting for it.
if [ -z "${GPUSAGE_TIMED:-}" ]; then
    GPUSAGE_TIMED=yes timeout -s KILL $((limit_s + 2)) "$0" </dev/null >/dev/null 2>&1
    exit 0
fi

control=${GPUSAGE_MPS_CONTROL:-nvidia-cuda-mps-control} # may name a stand-in
root=${GPUSAGE_MPS_FOLDER:-/run/gpusage-mps}
job=${SLURM_JOB_ID:-}
user=${SLURM_JOB_UID:-0}
deadline=$(($(date +%s) + limit_s))

# Print the whole seconds left, at least 1.
left() {
    now=$(date +%s)
    echo $((deadline - now > 1 ? deadline - now : 1))
}

device=${CUDA_VISIBLE_DEVICES:-}
case $device in "" | *[!A-Za-z0-9-]*) exit 0 ;; esac
case $job in "" | *[!0-9]*) exit 0 ;; esac
command -v "$control" || exit 0

# A GPU's identifier is the same for every process; its number depends on which GPUs a process sees.
case $device in
    *[!0-9]*) ;;
    *)
        found=$(timeout -k 1 "$(left)" nvidia-smi -i "$device" --query-gpu=uuid --format=csv,noheader)
        case $found in GPU-*) device=$found ;; esac
        ;;
esac

folder=$root/gpu-$device
umask 022
mkdir -p "$folder" "$root/jobs" || exit 0
umask 077
true >>"$folder/lock" && chmod 0600 "$folder/lock" # who can open it can lock it, and so keep others from MPS
umask 022

mps() {
    CUDA_MPS_PIPE_DIRECTORY=$folder/pipe CUDA_MPS_LOG_DIRECTORY=$folder/log CUDA_VISIBLE_DEVICES=$device \
        CUDA_DEVICE_ORDER=PCI_BUS_ID timeout -k 1 "$(left)" "$control" "$@" 9>&-
}

# Start the daemon for this job's user alone, or for every user if the site wants that: then one client's fatal
# fault ends the other users' clients as well.
start() {
    unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE # the daemon would apply it as a limit on every client
    rm -f "$folder/user"
    [ -n "${GPUSAGE_ACROSS_USERS:-}" ] && mps -d -multiuser-server </dev/null && echo any >"$folder/user" && return 0
    mps -d </dev/null && echo "$user" >"$folder/user"
}

# Tell whether a daemon runs that this job may use; another user's daemon would keep the job waiting.
served() {
    echo get_server_list | mps || start || return 1
    read -r served_user <"$folder/user" || return 1
    [ "$served_user" = any ] || [ "$served_user" = "$user" ]
}

enter() {
    true >"$folder/jobs/$job" && echo "$folder" >"$root/jobs/$job"
}

# Forget this job, and stop a daemon that nobody uses.
leave() {
    rm -f "$folder/jobs/$job" "$root/jobs/$job"
    ! rmdir "$folder/jobs" || echo quit | mps
}

{
    flock -w "$(left)" 9 || exit 0
    mkdir -p "$folder/pipe" "$folder/log" "$folder/jobs" || exit 0
    { served && enter; } || leave
} 9>"$folder/lock"
exit 0
