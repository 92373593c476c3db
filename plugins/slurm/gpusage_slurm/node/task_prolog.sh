#!/bin/sh
# gpusage's TaskProlog: runs as the user before every task, the batch script too. slurmd acts on the "export" and "unset"
# lines that it prints. It says nothing in a job that is not ours, and never fails.

# An enclosing job's mark, emptied by job_submit, or the card's empty remainder: away with it.
for name in GPUSAGE_DECISION GPUSAGE_CARD CUDA_MPS_PINNED_DEVICE_MEM_LIMIT CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; do
    eval "empty=\${$name-given}" # "given" where there is no such variable
    [ -z "$empty" ] && echo "unset $name"
done

# Slurm itself sets the percentage in a job that holds a share: the mark alone may be another job's.
[ -n "${GPUSAGE_DECISION:-}" ] && [ -n "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}" ] || exit 0

# sbatch exported the request as the user wrote it, before it became a share; an inner srun would ask for it again.
for name in SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_SOCKET SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_TRES_BIND
do
    echo "unset $name"
done

# From 23.11 on SLURM_TRES_PER_TASK also counts CPUs: only its GPUs go.
others=
old_ifs=$IFS
IFS=,
set -f
for word in ${SLURM_TRES_PER_TASK:-}; do
    case $word in
        gres[:/]gpu | gres[:/]gpu[:=]*) ;;
        *) others=${others:+$others,}$word ;;
    esac
done
set +f
IFS=$old_ifs
if [ -n "$others" ]; then
    echo "export SLURM_TRES_PER_TASK=$others"
else
    echo "unset SLURM_TRES_PER_TASK"
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
