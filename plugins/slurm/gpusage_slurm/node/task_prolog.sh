#!/bin/sh
# gpusage's TaskProlog: runs as the user before every task, the batch script too. slurmd acts on the "export" and "unset"
# lines that it prints. It says nothing in a job that is not ours, and never fails.

# What an salloc inside a job of ours took along is about that job.
if [ -n "${GPUSAGE_JOB:-}" ] && [ "$GPUSAGE_JOB" != "${SLURM_JOB_ID:-}" ]; then
    for name in GPUSAGE_DECISION GPUSAGE_JOB GPUSAGE_DEVICE CUDA_MPS_PINNED_DEVICE_MEM_LIMIT \
        CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY; do
        echo "unset $name"
    done
    exit 0
fi

# What an sbatch inside one took along, emptied by job_submit, or the card's empty remainder: away with it.
for name in GPUSAGE_DECISION SLURM_GPUSAGE_CARD GPUSAGE_CARD GPUSAGE_JOB GPUSAGE_DEVICE \
    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY; do
    eval "empty=\${$name-given}" # "given" where there is no such variable
    [ -z "$empty" ] && echo "unset $name"
done

[ -n "${GPUSAGE_DECISION:-}" ] || exit 0

# Slurm itself sets the percentage where a share is held. A step may hold none, and neither does a job that got its whole
# GPU back: an MPS daemon of its user's own would still hold it to the share's cap.
if [ -z "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}" ]; then
    echo "unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    exit 0
fi

# cli_filter lets an inner srun ask for the share by this. What sbatch exported of the request stays, for scripts read it;
# only the binding that --gpus-per-task implies goes: it would hide the device from every step.
echo "export GPUSAGE_JOB=${SLURM_JOB_ID:-}"
echo "unset SLURM_TRES_BIND"

# The batch script's device is the job's only one. Slurm hides it from several tasks that it should bind to GPUs.
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    echo "export GPUSAGE_DEVICE=$CUDA_VISIBLE_DEVICES"
elif [ -n "${GPUSAGE_DEVICE:-}" ]; then
    echo "export CUDA_VISIBLE_DEVICES=$GPUSAGE_DEVICE"
fi

# The prolog wrote where this job's MPS daemon listens, if it could start one. Its only device is number 0.
job_file=${GPUSAGE_MPS_FOLDER:-/run/gpusage-mps}/jobs/${SLURM_JOB_ID:-none}
if [ -r "$job_file" ]; then
    read -r folder <"$job_file" || folder=
    if [ -n "$folder" ] && [ -d "$folder/pipe" ]; then
        echo "export CUDA_MPS_PIPE_DIRECTORY=$folder/pipe"
        echo "export CUDA_MPS_LOG_DIRECTORY=$folder/log"
        echo "export CUDA_VISIBLE_DEVICES=0"
    fi
fi
exit 0
