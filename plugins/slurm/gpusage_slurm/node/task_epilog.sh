#!/bin/sh
# gpusage's TaskEpilog: runs as the user after every task, before slurmctld learns of its end. In a job of ours that holds a
# share and failed, it looks for CUDA's "out of memory" at the end of what the batch script wrote. If it is there, the job
# is requeued with the whole GPU that its user asked for, so that slurmctld and whoever waits for the job see one end, the
# last. It needs gpusaged for nothing, has the rights of the job's user alone, and never fails.
trap 'exit 0' EXIT # also if the shell itself ends the script
trap '' TERM       # slurmctld ends what is left of a requeued job, and this script is part of it

[ -n "${GPUSAGE_DECISION:-}" ] || exit 0
case ${SLURM_STEP_ID:-} in "" | -*) ;; *) exit 0 ;; esac # the batch script has no step
case ${SLURM_JOB_ID:-} in "" | *[!0-9]*) exit 0 ;; esac

# The file system may hang, and slurmctld may be away. The job's end waits for this script.
if [ -z "${GPUSAGE_TIMED:-}" ]; then
    GPUSAGE_TIMED=yes timeout -s KILL 10 "$0" </dev/null >/dev/null 2>&1
    exit 0
fi

tail_bytes=32768
out_of_memory='(CUDA|cuda runtime|CUDA runtime) error.*: *out of memory|CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY'
out_of_memory="$out_of_memory|cudaErrorMemoryAllocation|(torch|cupy)\\.([a-z]+\\.)*OutOfMemoryError|OOM when allocating tensor"
out_of_memory="$out_of_memory|RESOURCE_EXHAUSTED.*([Oo]ut of memory|[Aa]llocat|OOM)|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED"

# Of slurmstepd (26.05 puts the time in front, not its name), where srun cannot run its program; of Python without its script.
missing="error: execve\\(\\): .*: (No such file or directory|Permission denied|Exec format error)"
missing="$missing|python[0-9.]*: can't open file"

# Print how the batch script ended, as wait(2) has it; nothing if it is unknown. Slurm does not pass it to a TaskEpilog, but
# slurmstepd, which started it, answers anybody on its socket, as `scontrol listpids` does (REQUEST_STEP_TASK_INFO).
wait_status() {
    for python in /usr/bin/python3 python3; do
        ! command -v "$python" >/dev/null || break
    done
    "$python" -I -c '
import contextlib, os, socket, struct, sys

def parent(pid):
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[1])

def status(path, ancestors):
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2)
        client.connect(path)
        if struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0] not in ancestors:
            return ""  # of another cluster on this host
        answer = client.makefile("rb")
        client.sendall(struct.pack("=i", 0x7FFF))  # a version that is new enough; what we ask is the same in all
        answer.read(4)
        client.sendall(struct.pack("=i", 14))
        tasks, = struct.unpack("=I", answer.read(4))
        *_, has_ended, status = struct.unpack("=iIi?i", answer.read(17))
        return status if tasks == 1 and has_ended else ""

ancestors = [os.getppid()]
with contextlib.suppress(OSError):  # /proc may hide what is not of this user
    while ancestors[-1] > 1:
        ancestors.append(parent(ancestors[-1]))
suffix = f"_{sys.argv[1]}.4294967291"  # the step of a batch script
for line in open("/proc/net/unix", errors="replace"):
    if line.rstrip().endswith(suffix):
        with contextlib.suppress(OSError, struct.error):
            print(status(line.split()[-1], ancestors), end="")
' "$SLURM_JOB_ID"
}

# Print one field of `scontrol show job`. A text of several lines is cut at the first.
field() {
    printf '%s\n' "$job_record" | sed -n "s/^ *$1=//p" | sed -n '1s/ *$//p'
}

# Return whether a file ends with CUDA's error. A FIFO would wait for a writer; a link leads no further than the user's own rights.
ends_out_of_memory() {
    [ -f "$1" ] && tail -c "$tail_bytes" "$1" | grep -aqE "$out_of_memory"
}

# Return whether the job ended because a program is missing: by its exit status, the error number of execve or Python's 2,
# if that is known, and by its last line before those of srun.
misses_program() {
    case ${status:+$((status / 256))} in "" | 2 | 8 | 13) ;; *) return 1 ;; esac
    for file in "$errors" "$output"; do
        [ -f "$file" ] && tail -c "$tail_bytes" "$file" | grep -av '^srun: ' | tail -n 1 | grep -aqE "$missing" && return 0
    done
    return 1
}

# Print the MPS units of a whole GPU; nothing where GPUs differ. Nodes without GPUs have neither.
units_per_gpu() {
    scontrol --oneliner show nodes | sed -n 's/.* Gres=\([^ ]*\) .*/\1/p' | awk -F, '{
        gpus = shares = 0
        for (i = 1; i <= NF; i++) {
            split($i, words, "("); count = split(words[1], parts, ":")
            if (parts[1] == "gpu") gpus += parts[count]
            if (parts[1] == "mps") shares += parts[count]
        }
        if (gpus && shares) units[shares / gpus] = 1
    } END { for (each in units) { kinds++; only = each }; if (kinds == 1) print only }'
}

# Requeue the job, and restore its user's request before it starts again. Whether slurmctld would let its user do the
# second is tried first: for a running job it then answers that the job is no longer pending, and if anything forbids it,
# something else. The comment precedes the requeue: it keeps a second run from doing this again, and informs gpusaged, which
# has two minutes to restore the GPU if slurmstepd kills this script before it could. If the comment does not fit, the job
# is not requeued. A node refuses what was started, by slurmctld's clock, no later than the first run ended by
# the node's own.
requeue_whole() {
    scontrol update "JobId=$job" "Gres=$request" 2>&1 | grep -q "no longer pending" || return 1
    scontrol update "JobId=$job" "Comment=$1" || return 1
    scontrol requeue "$job" || return 1
    scontrol update "JobId=$job" "Gres=$request" StartTime=now+10 || true
}

unset SLURM_TIME_FORMAT SLURM_CLUSTERS SCONTROL_ALL SCONTROL_FEDERATION
job=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
job_record=$(timeout -k 1 3 scontrol show job "$job") || exit 0

# The job's mark names its user's request and its share. A job that got its whole GPU back holds something else.
mark=$(field AdminComment | sed -n \
    's/^.*gpusage [0-9a-f]\{12\} [A-Z]* gres\/\(gpu\(:[A-Za-z0-9_.-]*\)\{0,1\}:1\) -> gres\/\(mps:[0-9]*\)[, ].*/\1 \3/p')
gpu=${mark% *} share=${mark#* }
held=$(field TresPerNode)
resources=$(echo "$held" | sed 's/gres[:\/]//g')
case ,$resources, in *",$share,"*) ;; *) exit 0 ;; esac
[ -n "$mark" ] || exit 0

status=$(wait_status)
[ "$status" != 0 ] || exit 0
state=$(field JobState)
output=$(field StdOut)
errors=$(field StdErr)
missing_note="[its program is missing, says gpusage]"
comment=$(field Comment | sed 's/ *\[its program is missing, says gpusage\]$//') # of an earlier run of the job
case $comment in *"says gpusage]"*) exit 0 ;; esac

# The share is not to blame where no program ran. gpusaged reads this note with the job's exit status.
if ! ends_out_of_memory "$errors" && ! ends_out_of_memory "$output" && misses_program; then
    [ "${state%% *}" != RUNNING ] || scontrol update "JobId=$job" "Comment=$comment${comment:+ }$missing_note"
    exit 0
fi

# The next job like it gets a whole GPU, even one that is submitted before slurmctld has reported this end to gpusaged. Our
# job_submit.lua forwards the note and removes it from the comment. 126 and 127 mean a missing command, and statuses above
# 128 a signal from outside.
case $((${status:-0} / 256)) in
    0 | 126 | 127 | 129 | 130 | 131 | 137 | 138 | 140 | 143 | 152 | 153) ;;
    *)
        [ "${state%% *}" != RUNNING ] ||
            scontrol update "JobId=$job" "Comment=$comment${comment:+ }[failed in its share, says gpusage]"
        ;;
esac
ends_out_of_memory "$errors" || ends_out_of_memory "$output" || exit 0

case $held in
    *gres:*) gpu=mps:$(units_per_gpu) ;; # up to 23.02, slurmctld changes no share into a GPU
esac
request=$(echo "$resources" | tr , '\n' | sed "s/^$share\$/$gpu/" | paste -sd , -)

# A job that was ended by a signal, its user or its time limit is left alone, and so is one whose exit status is unknown.
may_requeue() {
    [ "${GPUSAGE_RESCUE:-}" != no ] && [ "$gpu" != mps: ] &&
        [ "${state%% *}" = RUNNING ] && [ -n "$status" ] && [ $((status % 256)) = 0 ]
}

message="gpusage: CUDA ran out of memory in this job's share of a GPU ($share, at most"
message="$message ${CUDA_MPS_PINNED_DEVICE_MEM_LIMIT:-as much as there is})."
started=$(field StartTime)
if may_requeue && requeue_whole "$comment${comment:+ }[out of GPU memory, started ${started%% *}, says gpusage]"; then
    message="$message The job runs again by itself, once, with a whole GPU."
else
    message="$message The next job like it gets a whole GPU. gpusage=off in its comment keeps a job from sharing."
    scontrol update "JobId=$job" "Comment=$comment${comment:+ }[out of GPU memory, says gpusage]"
fi
[ ! -f "${errors:-$output}" ] || echo "$message" >>"${errors:-$output}"
exit 0
