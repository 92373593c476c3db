#!/bin/sh
# gpusage's TaskEpilog: runs as the user after every task, before slurmctld learns of its end. If a process of a job of ours
# on its share of a GPU failed for want of memory, however the batch script ended, the job is requeued with the whole GPU
# that its user asked for, so that slurmctld and whoever waits for the job see one end, the last. The sampler on the node
# saw the processes (core/gpusage/node/sampler/failures.py). This script needs gpusaged for nothing, has the rights of the
# job's user alone, and never fails.
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

# Finds the last failure in a text. Prints "memory" if that is for want of memory on a GPU, "unclear" if a library could not
# begin there, "other" if it is a Python exception of another kind, and nothing if it has none. A program coped with what came before an exception of
# its own, but not if that speaks of another process that ended: so fail those that started the program or work with it.
# An exception's name alone, without a text, is of what started the program. Without an exception, the last five lines count.
# A name before ":" or "=" (of a setting) says nothing.
# The words are of the kind, no program's own: that a program on the GPU failed is known from its process.
classifier='
BEGIN {
    lacks = "out[ _]?of[ _]?([a-z]+[ _])?memory|oom when|errormemoryalloc|alloc[a-z_]*( of .*)?[ _]*fail"
    lacks = lacks "|(fail|unable|cannot|can.t|could not).*alloc.*(memory|buffer|bytes|[0-9] ?[kmg]i?b|gpu|cuda|device|tensor)"
    lacks = lacks "|(not enough|insufficient|no available|no free|exhausted).*memory"
    lacks = lacks "|(less|larger|more) than.*(gpu memory|kv cache)"
    gpus = "cuda|gpu|device|vram|hip ?(error|out|malloc)|cublas|cudnn|resource_?exhausted|bfc|requested buffer|cache blocks|mem.fraction"
    others = "fallocate|no space left|retry|fall(ing|s)? ?back|trying again|usage:|^w(arning)?[ :]|cpuallocator|cpu:[0-9]"
    host = "cpu|(^|[^a-z])host|heap|array with shape|cannot allocate memory|shared memory|shm|mmap|oom.kill|bad_alloc *$"
}
match($0, /Traceback \(most recent call last\)/) {
    prefix = substr($0, 1, RSTART - 1) # of a rank or a logger, before each line
    if (!chained) { before = verdict; verdict = "" }
    chained = 0; unfinished = 1; next
}
{
    line = index($0, prefix) == 1 ? substr($0, length(prefix) + 1) : $0
    gsub(/[a-z0-9]+(_[a-z0-9]+)+[^ a-z]? *[:=]/, "", line)
    line = tolower(line)
    if (line ~ /^[^ \t]/) lines_after++
}
line ~ /^exception ignored in|^error in atexit|(during handling of the above|direct cause of the following) exception/ { chained = 1; next }
line ~ lacks && line ~ gpus && line !~ others && (line !~ host || line ~ /cuda|gpu|device|vram/) {
    if (verdict != "memory" || unfinished) raised = unfinished
    verdict = "memory"; unfinished = lines_after = 0; next
}
line ~ /(dnn|cublas).*(not_initiali|fail.*initiali|initiali.*fail)/ && (verdict != "memory" || unfinished) {
    verdict = "unclear"; unfinished = 0; next
}
{ follows = line ~ /process|worker|child|exit ?(code|status)|root cause|closed by peer|connection ?reset|broken ?pipe|eoferror/ }
unfinished && line ~ /^[^ \t]/ {
    if (verdict == "") { verdict = follows && before ? before : "other"; raised = 1 }
    unfinished = 0; next
}
verdict == "memory" && !follows && line ~ /^[a-z0-9_.]*(error|exception): *[^ ]/ { verdict = "other" }
END { if (verdict != "memory" || raised || lines_after < 5) print verdict }
'
most_bytes=4194304

# Of slurmstepd (26.05 puts the time in front, not its name), where srun cannot run its program; of Python without its script.
missing="error: execve\\(\\): .*: (No such file or directory|Permission denied|Exec format error)"
missing="$missing|python[0-9.]*: can't open file"

# Print how the batch script ended, as wait(2) has it; nothing if it is unknown. Slurm does not pass it to a TaskEpilog, but
# slurmstepd, which started it, answers anybody on its socket, as `scontrol listpids` does (REQUEST_STEP_TASK_INFO).
wait_status() {
    "$(command -v /usr/bin/python3 || command -v python3)" -I -c '
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
    printf '%s\n' "$job_record" | sed -n "/^ *$1=/{s///;s/ *$//p;q;}"
}

# Classify the bytes from $2 to $3 of the file $1. A FIFO would wait for a writer; a link leads no further than the user's own
# rights.
classify_text() {
    begin=$2
    [ $(($3 - begin)) -le "$most_bytes" ] || begin=$(($3 - most_bytes))
    [ ! -f "$1" ] || tail -c "+$((begin + 1))" "$1" | head -c $(($3 - begin)) | LC_ALL=C awk "$classifier"
}

# Return whether the name of a file has the number of the job, or of the array's task, so that no other job writes it.
is_named_by_job() {
    folder=${1%/*}
    set -- "/${folder##*/}/${1##*/}" # a folder further up may have any number
    for number in "$SLURM_JOB_ID" ${SLURM_ARRAY_JOB_ID:+"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"}; do
        case $1 in *[!0-9]"$number" | *[!0-9]"$number"[!0-9_]*) return 0 ;; esac
    done
    return 1
}

# Return whether another job of the user that has started writes a file, or may write it: its output goes there, or it has
# this job's name, as an array's tasks have, and the file is no job's output.
may_be_shared() {
    squeue --noheader --array --states=all --user="$(id -u)" \
        --Format="JobArrayID:64,StateCompact:4,STDOUT:4096,Name:1024" 2>/dev/null |
        JOB=$job FILE=$1 NAME=$(field "JobId=.* JobName") OUTPUT=$output awk '
            function cut(from, length_) { part = substr($0, from, length_); gsub(/^ +| +$/, "", part); return part }
            cut(1, 64) == ENVIRON["JOB"] || cut(65, 4) == "PD" { next }
            cut(69, 4096) == ENVIRON["FILE"] { shared = 1 }
            ENVIRON["FILE"] != ENVIRON["OUTPUT"] && cut(4165, 1024) == ENVIRON["NAME"] { shared = 1 }
            END { exit !(shared || NR == 0) }'
}

# Classify this run's text in a file; nothing if another job may have written what is there.
classify_output() {
    verdict=$(classify_text "$1" "$2" "$3")
    # Only this job has the file open now; a task of its array may have written before.
    [ "$verdict" != memory ] || [ "$4${SLURM_ARRAY_TASK_ID:-}" = own ] || is_named_by_job "$1" || ! may_be_shared "$1" ||
        verdict=
    echo "$verdict"
}

# Return whether a process $1 that ended with $2 failed for want of memory. What was written until then is its own words;
# if there are none, those that came in the next moment are: tee and srun are later. If they are unclear, or nobody wrote
# anything, its use near the limit tells; without words only if it ended by itself, and not by somebody's signal.
lacked_memory() {
    texts=$(sed -n "s/^output $1 //p" "$ends" | while read -r begin end later kind path; do
        verdict=$(classify_output "$path" "$begin" "$end" "$kind")
        echo "${verdict:-$(classify_output "$path" "$begin" "$later" "$kind")}"
    done)
    case $texts in
        *other*) return 1 ;;
        *memory*) return 0 ;;
        *unclear*) grep -qx "near $1" "$ends"; return ;;
    esac
    grep -qx "full $1" "$ends" && case $(($2 % 128)) in 0 | 4 | 5 | 6 | 7 | 8 | 11) ;; *) return 1 ;; esac
}

# Print the failures with which the job did not cope: no process came to the GPU after them, or ended well. If the script
# did, none may have gone on either. Ranks of one program end together: of the last minute all count.
last_failures() {
    awk -v status="$status" '
        $1 == "gpu" { count = 0; on_gpu[$2] }
        $1 == "well" { count = 0; delete on_gpu[$2] }
        $1 == "failed" { failed[++count] = $2 " " $3; at[count] = $4; delete on_gpu[$2] }
        END {
            for (pid in on_gpu) if (status == 0 || status == "") exit
            for (i = 1; i <= count; i++) if (at[i] >= at[count] - 60) print failed[i]
        }' "$ends"
}

# Return whether the share was too small: a process of the job on the GPU failed for want of memory. Where no sampler saw
# the processes, the job must have failed, and its output must say so; it must be the job's own, and of this run.
was_too_small() {
    if [ -n "$seen" ]; then
        echo "$failures" | { # a pipe's loop is a process of its own
            while read -r pid ended; do ! lacked_memory "$pid" "${ended:-0}" || exit 0; done
            exit 1
        }
        return
    fi
    start=$(field AdminComment | sed -n 's/.*gpusage [0-9a-f]\{12\} [A-Z]* gres[^|]*, start \([1-9]\).*/\1/p')
    case $((${SLURM_RESTART_COUNT:-0} + 1 - ${start:-1}))/$status in 0/0 | [1-9]*) return 1 ;; esac
    for file in "$errors" "$output"; do
        [ -f "$file" ] && is_named_by_job "$file" || continue
        size=$(wc -c <"$file")
        [ "$(classify_text "$file" $((size > 32768 ? size - 32768 : 0)) "$size")" != memory ] || return 0
    done
    return 1
}

# Return whether the job ended because a program is missing: by its exit status, the error number of execve or Python's 2,
# if that is known, and by its last line before those of srun.
misses_program() {
    case ${status:+$((status / 256))} in "" | 2 | 8 | 13) ;; *) return 1 ;; esac
    for file in "$errors" "$output"; do
        [ -f "$file" ] && tail -c 32768 "$file" | grep -av '^srun: ' | tail -n 1 | grep -aqE "$missing" && return 0
    done
    return 1
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

# The sampler writes there how the job's processes on the GPU ended. It answers whoever has read the file, after it has
# written down all that the kernel said before: within a few milliseconds, if it lives.
ends=${GPUSAGE_MPS_FOLDER:-/run/gpusage-mps}/ends/$SLURM_JOB_ID seen= tries=0
if [ -f "$ends" ] && [ -r "$ends" ]; then
    : <"$ends"
    until grep -qx "read $$" "$ends" && seen=yes || [ "$tries" = 75 ]; do
        sleep 0.02
        tries=$((tries + 1))
    done
fi
status=$(wait_status)
failures=$([ -z "$seen" ] || last_failures)
[ "$status" != 0 ] || [ -n "$failures" ] || exit 0

unset SLURM_TIME_FORMAT SLURM_CLUSTERS SCONTROL_ALL SCONTROL_FEDERATION SQUEUE_FORMAT SQUEUE_FORMAT2 SQUEUE_STATES
job=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
job_record=$(timeout -k 1 3 scontrol show job "$job") || exit 0

# The job's mark names its user's request and its share, or its slice and the larger GPU to run on if that is too small. A
# job that got its whole GPU back holds something else.
kind='[A-Za-z0-9_.-]*'
mark=$(field AdminComment | sed -n \
    -e "s/^.*gpusage [0-9a-f]\{12\} [A-Z]* gres\/\(gpu\(:$kind\)\{0,1\}:1\) -> gres\/\(mps:[0-9]*\)[, ].*/\1 \3/p" \
    -e "s/^.*gpusage [0-9a-f]\{12\} [A-Z]* gres\/gpu\(:$kind\)*\(:1\)\{0,1\} -> gres\/\(gpu:$kind:1\)\(, else \($kind\)\)\{0,1\} .*/gpu:\5:1 \3/p")
gpu=${mark% *} share=${mark#* } whole="a whole GPU"
case $share/$gpu in gpu:*/gpu:[!:]*) whole=gres/$gpu ;; esac
held=$(field TresPerNode)
resources=$(echo "$held" | sed 's/gres[:\/]//g')
case ,$resources, in *",$share,"*) ;; *) exit 0 ;; esac
[ -n "$mark" ] || exit 0

state=$(field JobState)
output=$(field StdOut)
errors=$(field StdErr)
missing_note="[its program is missing, says gpusage]"
comment=$(field Comment | sed 's/ *\[its program is missing, says gpusage\]$//') # of an earlier run of the job
case $comment in *"says gpusage]"*) exit 0 ;; esac

was_too_small && too_small=yes || too_small=

# The share is not to blame where no program ran. gpusaged reads this note with the job's exit status.
if [ -z "$too_small" ] && misses_program; then
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
[ -n "$too_small" ] || exit 0

case $held/$share in # up to 23.02, slurmctld changes no share into a GPU, and no slice into another
    *gres:*/mps:*)
        gres=$(scontrol --oneliner show nodes | sed -n 's/.* Gres=\([^ ]*\) .*/\1/p')
        gpu=mps:$(echo "$gres" | "$(dirname "$(readlink -f "$0")")/units_per_gpu.sh")
        ;;
    *gres:*/gpu:*) gpu=mps: ;;
esac
request=$(echo "$resources" | tr , '\n' | sed "s/^$share\$/$gpu/" | paste -sd , -)

# The tasks of its array that wait would lack memory as well. slurmctld leaves those that run as they are.
case $gpu in
    mps: | gpu::1) request= ;; # nothing is larger
    *) [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || scontrol update "JobId=$SLURM_ARRAY_JOB_ID" "Gres=$request" ;;
esac

# A job that its user, its time limit or somebody's signal ended is left alone, and so is one whose exit status is unknown
# if nobody saw its processes.
may_requeue() {
    case ${status:+$((status % 128))}/$seen in 0/* | [4-8]/* | 11/* | /yes) ;; *) return 1 ;; esac
    [ "${GPUSAGE_RESCUE:-}" != no ] && [ -n "$request" ] && [ "${state%% *}" = RUNNING ]
}

message="gpusage: CUDA ran out of memory in this job's share of a GPU ($share, at most"
message="$message ${CUDA_MPS_PINNED_DEVICE_MEM_LIMIT:-as much as there is})."
started=$(field StartTime)
if may_requeue && requeue_whole "$comment${comment:+ }[out of GPU memory, started ${started%% *}, says gpusage]"; then
    message="$message The job runs again by itself, once, with $whole."
else
    message="$message The next job like it gets $whole. gpusage=off in its comment keeps a job from sharing."
    scontrol update "JobId=$job" "Comment=$comment${comment:+ }[out of GPU memory, says gpusage]"
fi
[ ! -f "${errors:-$output}" ] || echo "$message" >>"${errors:-$output}"
exit 0
