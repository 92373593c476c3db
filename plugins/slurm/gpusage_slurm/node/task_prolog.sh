#!/bin/sh
# gpusage's TaskProlog: runs as the user before every task, the batch script too. slurmd acts on the "export" and "unset"
# lines that it prints. In a job that is not ours it prints nothing. It never fails.

# Where the prolog announced a wall, no program may be faster than it: a process of root's is limiting the memory of the
# job's cgroup, which this task is in. After 2 s the task starts with a cap.
limited_by=
wall_file=${GPUSAGE_MPS_FOLDER:-/run/gpusage-mps}/walls/${SLURM_JOB_ID:-none}
if [ -r "$wall_file" ]; then
    waits=0
    while read -r limited_by _ <"$wall_file" && [ "$limited_by" = wait ] && [ "$waits" -lt 90 ]; do
        sleep 0.02
        waits=$((waits + 1))
    done
fi 2>/dev/null

# What a share's programs need, and no job that is submitted inside a share.
growth="XLA_PYTHON_CLIENT_PREALLOCATE=false TF_FORCE_GPU_ALLOW_GROWTH=true"
case ${GPUSAGE_GROWTH:-} in
    "" | "${SLURM_JOB_ID:-}",*) ;;
    *)
        for pair in $growth; do
            case $GPUSAGE_GROWTH, in *,"${pair%=*}",*) echo "unset ${pair%=*}" && unset "${pair%=*}" ;; esac
        done
        echo "unset GPUSAGE_GROWTH"
        ;;
esac

# These variables describe the outer job if an salloc inside a job of ours passed them on.
if [ -n "${GPUSAGE_JOB:-}" ] && [ "$GPUSAGE_JOB" != "${SLURM_JOB_ID:-}" ]; then
    for name in GPUSAGE_DECISION GPUSAGE_JOB GPUSAGE_DEVICE GPUSAGE_THREAD_PERCENT GPUSAGE_RESCUE GPUSAGE_NOTICE \
        SLURM_GPUSAGE_LEARN GPUSAGE_LEARN \
        CUDA_MPS_PINNED_DEVICE_MEM_LIMIT CUDA_MPS_CLIENT_PRIORITY CUDA_MPS_SM_PARTITION CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY; do
        echo "unset $name"
    done
    exit 0
fi

# Unset variables that job_submit emptied: those that an sbatch inside a job of ours passed on, and the card.
for name in GPUSAGE_DECISION SLURM_GPUSAGE_CARD GPUSAGE_CARD SLURM_GPUSAGE_DEADLINE GPUSAGE_DEADLINE GPUSAGE_JOB \
    GPUSAGE_DEVICE GPUSAGE_THREAD_PERCENT GPUSAGE_RESCUE GPUSAGE_NOTICE CUDA_MPS_PINNED_DEVICE_MEM_LIMIT CUDA_MPS_CLIENT_PRIORITY \
    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE \
    CUDA_MPS_SM_PARTITION CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY; do
    eval "empty=\${$name-missing}" # "missing" if there is no such variable
    [ -z "$empty" ] && echo "unset $name"
done

# The batch script has no step; 26.05 calls it -5.
case ${SLURM_STEP_ID:-} in "" | -*) is_script=yes ;; *) is_script= ;; esac

# The job shows its model to the next one of its script: Python runs our sitecustomize first, in the first task alone. An
# sbatch inside such a job passes its variables on to a job that shows nothing.
on_start=${GPUSAGE_ON_START:-} # the copy that `gpusage slurm install` makes has the folder here
if [ "${SLURM_PROCID:-0}" != 0 ] || [ -z "${SLURM_GPUSAGE_LEARN:-}" ]; then
    [ -z "${GPUSAGE_LEARN:-}" ] || echo "unset GPUSAGE_LEARN"
elif [ -r "$on_start/sitecustomize.py" ]; then
    echo "export GPUSAGE_LEARN=$SLURM_GPUSAGE_LEARN"
    echo "export GPUSAGE_LEARN_JOB=SLURM_JOB_ID"
    case :${PYTHONPATH:-}: in
        *":$on_start:"*) ;;
        *) echo "export PYTHONPATH=$on_start${PYTHONPATH:+:$PYTHONPATH}" ;;
    esac
fi

[ -n "${GPUSAGE_DECISION:-}" ] || exit 0

# The prolog has sent the job back to the queue: slurmctld ends this step, and its program must not begin before.
[ ! -e "${GPUSAGE_MPS_FOLDER:-/run/gpusage-mps}/granted/${SLURM_JOB_ID:-none}.back" ] || sleep 30

# Starts of ours that were turned back are none of the user's: scripts resume from a checkpoint by this count.
case $is_script/${SLURM_RESTART_COUNT:-0} in
    yes/[1-9]*)
        start=$(timeout -k 1 3 scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null |
            sed -n 's/^ *AdminComment=.*gpusage [0-9a-f]\{12\} [A-Z]* gres[^|]*, start \([1-9]\).*/\1/p' | head -n 1)
        restarts=$((SLURM_RESTART_COUNT + 1 - ${start:-1}))
        [ "$restarts" -gt 0 ] && echo "export SLURM_RESTART_COUNT=$restarts" || echo "unset SLURM_RESTART_COUNT"
        ;;
esac

# A slice (MIG) needs nothing of what follows, unless the job lacked memory there and runs again, elsewhere.
case ${SLURM_RESTART_COUNT:-0}/$GPUSAGE_DECISION in
    0/gpu:*) exit 0 ;;
    */gpu:*)
        timeout -k 1 3 scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null |
            grep -q "^ *TresPerNode=gres[:/]$GPUSAGE_DECISION" && exit 0
        ;;
esac

job=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID:-}_$SLURM_ARRAY_TASK_ID} job=${job:-${SLURM_JOB_ID:-}} # as users know it

# Slurm sets the percentage itself if a share is held. A step may hold no share, and a job that got its whole GPU back
# holds none, or, on Slurm 22.05, all shares of one GPU, for which an inner srun then asks. With an old percentage or cap,
# such a job would still be limited to its share.
whole=
case ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-} in
    "") whole=yes ;;
    100)
        share=$(timeout -k 1 3 scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null |
            sed -n 's/^ *TresPerNode=gres[:/]\(mps:[0-9]*\).*/\1/p' | head -n 1)
        if [ -n "$share" ] && [ "$share" != "$GPUSAGE_DECISION" ]; then
            echo "export GPUSAGE_DECISION=$share"
            whole=yes
        fi
        ;;
esac
if [ -n "$whole" ]; then
    for name in CUDA_MPS_PINNED_DEVICE_MEM_LIMIT CUDA_MPS_CLIENT_PRIORITY GPUSAGE_THREAD_PERCENT; do
        eval "[ -z \"\${$name:-}\" ] || echo 'unset $name'"
        unset "$name"
    done
    case ${SLURM_RESTART_COUNT:-0}/$is_script in
        [1-9]*/yes)
            case $GPUSAGE_DECISION in gpu:*) where="on a larger GPU" ;; *) where="with a whole GPU" ;; esac
            echo "print gpusage: this job starts again, $where: 'gpusage decisions $job' says why."
            ;;
    esac
fi
[ -n "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}" ] || exit 0

# Users whose client hides what sbatch printed read it here.
if [ -n "$is_script" ] && [ -z "$whole" ] && [ "${GPUSAGE_NOTICE:-}" != no ]; then
    echo "print gpusage: this job has a share of a GPU, gres/$GPUSAGE_DECISION: 'gpusage decisions $job' says why."
fi

# cli_filter reads this to let an inner srun ask for the share. The request that sbatch exported stays, because scripts
# read it. Only the binding that --gpus-per-task implies goes: it would hide the device from every step.
echo "export GPUSAGE_JOB=${SLURM_JOB_ID:-}"
echo "unset SLURM_TRES_BIND"

# The site may let a job use more threads than its share. It never gets fewer than Slurm gives it.
case ${GPUSAGE_THREAD_PERCENT:-} in
    [1-9] | [1-9][0-9] | 100)
        [ "$GPUSAGE_THREAD_PERCENT" -gt "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" ] 2>/dev/null &&
            echo "export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$GPUSAGE_THREAD_PERCENT"
        ;;
esac

# Behind a wall, a program sees its part as the GPU's size; under a cap as well, it would see the whole size.
if [ "$limited_by" = wall ] && [ -n "${CUDA_MPS_PINNED_DEVICE_MEM_LIMIT:-}" ]; then
    echo "unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
fi

# Under a limit of MPS a program sees the whole GPU's size, of which JAX and TensorFlow take most at their start: here they
# take what they use, unless the user has said otherwise. Not set is a fraction of the memory: it has two names, and JAX
# leaves the GPU alone where it finds both.
[ "$limited_by" != wall ] || growth=
[ -z "${XLA_PYTHON_CLIENT_MEM_FRACTION:-}${XLA_CLIENT_MEM_FRACTION:-}" ] || growth=${growth#* }
names=
for pair in $growth; do
    eval "[ -z \"\${${pair%=*}:-}\" ]" && echo "export $pair" && names=$names,${pair%=*}
done
[ -z "$names" ] || echo "export GPUSAGE_GROWTH=${SLURM_JOB_ID:-}$names"

# The batch script's device is the job's only one. If Slurm binds several tasks to GPUs, it hides the device from them.
device=${CUDA_VISIBLE_DEVICES:-${GPUSAGE_DEVICE:-}}
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    echo "export GPUSAGE_DEVICE=$device"
elif [ -n "$device" ]; then
    echo "export CUDA_VISIBLE_DEVICES=$device"
fi

# If MPS serves this job, the prolog wrote the GPU's folder and the variables that a client needs. If the daemon has died
# since, the job runs without MPS. Where /proc hides other users' processes, nobody can tell.
job_file=${GPUSAGE_MPS_FOLDER:-/run/gpusage-mps}/jobs/${SLURM_JOB_ID:-none}
[ -r "$job_file" ] || exit 0
{
    read -r folder
    if [ -z "$folder" ] || [ ! -d "$folder/pipe" ]; then exit 0; fi
    daemon=$(cat "$folder/pipe/nvidia-cuda-mps-control.pid" 2>/dev/null)
    if [ -n "$daemon" ] && [ ! -d "/proc/$daemon" ] && [ -d /proc/1 ]; then exit 0; fi
    while IFS== read -r name value; do
        case $name in
            CUDA_MPS_SM_PARTITION) # SMs of its own, of which a percentage would take a part; cli_filter looks for one
                echo "export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100"
                ;;
            CUDA_MPS_PINNED_DEVICE_MEM_LIMIT) [ "$limited_by" != wall ] || continue ;;
            CUDA_MPS_PIPE_DIRECTORY | CUDA_MPS_LOG_DIRECTORY) ;;
            *) continue ;;
        esac
        echo "export $name=$value"
    done
} <"$job_file"

# A client of the daemon sees one GPU, as its device 0. A program that finds no daemon (it died, or a container has a /run of
# its own) must find the same GPU or none. Where Slurm says 0, 0 is right for both: ConstrainDevices lets the job open no
# other GPU, or its GPU is the first on the PCI bus. Any other number is right for one of the two, and the UUID for both.
case $device in
    0) echo "export CUDA_DEVICE_ORDER=PCI_BUS_ID" ;;
    *) echo "export CUDA_VISIBLE_DEVICES=${folder##*/gpu-}" ;;
esac
exit 0
