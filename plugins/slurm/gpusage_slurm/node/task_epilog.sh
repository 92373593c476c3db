#!/bin/sh
# gpusage's TaskEpilog: runs as the user after every task. In a job of ours that holds a share, it looks for CUDA's "out of
# memory" at the end of what the batch script wrote. If it is there, it says so in the job's output and in its comment;
# gpusaged then lets a job that failed run again, once, with a whole GPU. The script runs with the rights of the job's user
# alone, and changes only that user's job. It never fails.
trap 'exit 0' EXIT # also if the shell itself ends the script

[ -n "${GPUSAGE_DECISION:-}${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}" ] || exit 0
case ${SLURM_STEP_ID:-} in "" | -*) ;; *) exit 0 ;; esac # the batch script has no step
case ${SLURM_JOB_ID:-} in "" | *[!0-9]*) exit 0 ;; esac

# The file system may hang, and slurmctld may be away. The job's end waits for this script.
if [ -z "${GPUSAGE_TIMED:-}" ]; then
    GPUSAGE_TIMED=yes timeout -s KILL 10 "$0" </dev/null >/dev/null 2>&1
    exit 0
fi

seen=" [out of GPU memory, says gpusage]" # gpusage_slurm.jobs.starving looks for it
most_bytes=32768
words='(CUDA|cuda runtime|CUDA runtime) error.*: *out of memory|CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY'
words="$words|cudaErrorMemoryAllocation|(torch|cupy)\\.([a-z]+\\.)*OutOfMemoryError|OOM when allocating tensor"
words="$words|RESOURCE_EXHAUSTED.*([Oo]ut of memory|[Aa]llocat|OOM)|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED"

job=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID

described=$(timeout -k 1 3 scontrol show job "$job") || exit 0

# Print what slurmctld says of one field. A text of several lines is cut at the first.
field() {
    printf '%s\n' "$described" | sed -n "s/^ *$1=//p" | sed -n '1s/ *$//p'
}

# Tell whether a file ends in the words. A FIFO would wait for a writer; a link leads no further than the user's own rights.
ends_so() {
    [ -f "$1" ] && tail -c "$most_bytes" "$1" | grep -aqE "$words"
}

# A job that got its whole GPU back does not have this mark any more.
case $(field AdminComment) in *gpusage\ [0-9a-f]*\ REWRITE\ gres* | *gpusage\ [0-9a-f]*\ STUCK\ gres*) ;; *) exit 0 ;; esac

output=$(field StdOut)
errors=$(field StdErr)
comment=$(field Comment)
ends_so "$errors" || ends_so "$output" || exit 0
case $comment in *"$seen"*) exit 0 ;; esac

[ -f "${errors:-$output}" ] && echo "gpusage: CUDA ran out of memory in this job's share of a GPU (${GPUSAGE_DECISION:-mps}," \
    "at most ${CUDA_MPS_PINNED_DEVICE_MEM_LIMIT:-as much as there is}). If the job failed for that, and the site and --requeue" \
    "allow it, it runs again by itself, once, with a whole GPU. gpusage=off in its comment keeps it from sharing." \
    >>"${errors:-$output}"
timeout -k 1 3 scontrol update "JobId=$job" "Comment=$comment$seen"
exit 0
