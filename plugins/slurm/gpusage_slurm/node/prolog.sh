#!/bin/sh
# gpusage's Prolog: as root on the node, lets a job share its GPU by MPS; gpusage-mps does it.
# Whatever goes wrong, it exits with 0, because any other status takes the node out of service: the job then shares the
# GPU by time slices, without MPS, and its record says why.
#
# Slurm places a share beside whichever job. One that would start on another user's GPU goes back to the queue before its
# program runs: slurmd starts nothing of a job that is requeued during its prolog.
trap 'exit 0' EXIT # also if the shell itself ends the script

here=$(dirname "$(readlink -f "$0")")
sample() { [ ! -x "$here/usage.sh" ] || "$here/usage.sh" begin; }
root=${GPUSAGE_MPS_FOLDER:-/run/gpusage-mps} job=${SLURM_JOB_ID:-}
rm -f "$root/granted/$job.back" "$root/walls/$job" # of an earlier start; the task prolog waits for them

# In a job that holds a share, Slurm sets the percentage and one device: a share lies on one GPU.
for program in "$here/gpusage-mps" "$here/../../gpusage/node/dividing/gpusage-mps" "$here/../../../../core/gpusage/node/dividing/gpusage-mps"; do
    [ ! -x "$program" ] || break # beside this script, as installed, or in a checkout
done
if [ -z "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}" ] || [ ! -x "$program" ]; then
    sample
    exit 0
fi

# slurmctld may be away, and the job's start waits for this script: 20 seconds for all that is asked.
ask() {
    seconds=$((query_deadline - $(date +%s)))
    [ "$seconds" -gt 0 ] && timeout -k 1 "$seconds" "$@" 2>/dev/null
}

# Print the MPS units of a whole GPU of a node with this Gres.
units_per_gpu() {
    echo "$1" | awk -F, '{
        for (i = 1; i <= NF; i++) {
            split($i, words, "("); count = split(words[1], parts, ":")
            if (parts[1] == "gpu") gpus += parts[count]
            if (parts[1] == "mps") units += parts[count]
        }
        if (gpus && units) print units / gpus
    }'
}

# Send the job back to the queue. It then keeps off the nodes where shares of other users run, for Slurm gives a share the
# first GPU of a node that has room, even if another one is free. At its fourth start, or if no node like this one is left,
# it gets its whole GPU, so that it does not wait for long. What its user wrote stays: the nodes that it excludes, its
# constraint, and that it must not be requeued.
turn_back() {
    # Commands of a site's own Slurm lie beside its slurmd or slurm.conf; a prolog has no PATH.
    PATH=${PATH:-/usr/bin:/bin}:$(dirname "$(readlink -f "/proc/$PPID/exe")")/../bin
    PATH=$PATH:$(dirname "$(dirname "${SLURM_CONF:-/usr/bin/none}")")/bin:/usr/local/bin:/opt/slurm/bin
    query_deadline=$(($(date +%s) + 20))
    unset SLURM_TIME_FORMAT SLURM_CLUSTERS
    export PATH SQUEUE_LOCAL=1 SINFO_LOCAL=1
    node=$SLURMD_NODENAME

    # A job whose epilog never came is not there any more. If all of them are such, the GPU has nobody.
    present=$(ask squeue -ha -t all -w "$node" -o "%A %t") || return
    present=$(echo "$present" | grep -vE " (PD|CD|CA|F|TO|NF|PR|BF|DL|OOM|RV)$" | cut -d " " -f 1)
    met=
    while read -r each; do
        if echo "$present" | grep -qx "$each"; then met=$each; else "$program" leave "$each" </dev/null >/dev/null 2>&1; fi
    done <"$root/granted/$job.met"
    [ -n "$met" ] || return
    # A whole GPU that slurmctld refuses must not keep the job from running.
    [ "${SLURM_JOB_RESTART_COUNT:-0}" -lt 8 ] || return

    # Columns without any text of a user's.
    row=$(ask squeue -ha -t all -j "$job" -o "%A|%F|%K|%b|%n|%x|%f" | grep "^$job|") || return
    IFS="|" read -r _ array task resources named excluded features <<END
$row
END
    mark=$(ask squeue -ha -t all -j "$job" -O "JobID:16,Requeue:4,admin_comment:1100" | grep "^$job ") || return
    requeue=$(echo "$mark" | cut -c17)
    mark=$(echo "$mark" | cut -c21- | sed 's/ *$//')
    case $task in N/A) ;; *) job=${array}_$task ;; esac

    # Of ours: what the user asked for, the share, the nodes that it avoids, and what holds it to GPU types.
    echo "$mark" | grep -q "gpusage [0-9a-f]\{12\} REWRITE gres/gpu[^ ]* -> gres/mps:" || return
    rest=${mark#*REWRITE }
    before=${rest%% -> *} before=${before#gres/} after=${rest#* -> gres/} after=${after%% | *}
    share=${after%%,*} placement=
    case $after in *", "*) placement=${after#*, } ;; esac
    older=
    case $resources in *gres:*) older=yes ;; esac
    resources=$(echo "$resources" | sed 's/gres[:\/]//g')
    case ,$resources, in *",$share,"*) ;; *) return ;; esac
    avoided=
    case $placement in
        "avoid "*)
            avoided=${placement#avoid } avoided=${avoided%%, *}
            placement=${placement#"avoid $avoided"} placement=${placement#, }
            ;;
    esac

    # The user's own list, without what was added to it.
    own=
    case $excluded in "" | "(null)") ;; *)
        own=$(ask scontrol show hostnames "$excluded" | grep -vxF "$(echo "$avoided" | tr , '\n')" | paste -sd , -)
        ;;
    esac

    # Nodes that surely may run it are like this one. Beside a share that leaves it no room it cannot start.
    mine=${share#mps:} units=$((mine * 100 / CUDA_MPS_ACTIVE_THREAD_PERCENTAGE))
    running=$(ask squeue -ha -t R,S,CF,CG -o "%A %U %N %b") || return
    kinds=$(ask sinfo -hN -t idle,mix,alloc -p "$SLURM_JOB_PARTITION" -o "%N %f %G %c %m") || return
    kind=$(echo "$kinds" | sed -n "s/^$node //p" | head -n 1)
    strange=$(echo "$running" | awk -v user="$SLURM_JOB_UID" -v room=$((units - mine)) '
        $2 != user && $4 ~ /mps:[0-9]+/ { count = $4; sub(/.*mps:/, "", count); if (count + 0 <= room) print $3 }')
    # A job of several nodes has a list of them, n[1-2].
    case $strange in *"["* | *,*) strange=$(ask scontrol show hostnames "$(echo "$strange" | paste -sd , -)") || return ;; esac
    strange=$(echo "$strange" | sort -u)
    left=$(echo "$kinds" | sed -n "s|^\([^ ]*\) $kind\$|\1|p" | grep -vxF "$node" | grep -vxF "$strange" |
        grep -cvxF "$(echo "$own" | tr , '\n')")
    avoided=$(echo "$node $strange" | tr ' ' '\n' | grep . | sort -u | grep -vxF "$(echo "$own" | tr , '\n')" | paste -sd , -)
    reason="it would have started beside job $met of another user on $node"

    gres= settings=
    if [ "${SLURM_JOB_RESTART_COUNT:-0}" -ge 3 ] || [ -n "${named#"(null)"}" ] || [ "$left" = 0 ] || [ ${#avoided} -gt 256 ]; then
        # Up to 23.02, slurmctld changes no share into a GPU. All shares of one are as good.
        gres=$before start=now+10
        [ -z "$older" ] || gres=mps:$(units_per_gpu "$(echo "$kind" | cut -d " " -f 2)")
        [ "$gres" != mps: ] || return
        after="BACK gres/$share -> gres/$gres"
        case $before/$reason/$placement in
            gpu/*"/constraint $features" | gpu:1/*"/constraint $features")
                case $mark in
                    *"; kept off "* | *"| kept off "*) ;; # the user excludes the other types
                    *) settings="Features=$(echo "$features" | sed -E 's/^(\([^()]*\)|[^&()]+)&?//; s/^\((.*)\)$/\1/')" ;;
                esac
                ;;
            */"prefer "*) settings=Prefer= ;;
        esac
        avoided=
    else
        # Another node has not heard of this start, so the job need not wait.
        start=now+2 after="REWRITE gres/$before -> gres/$share, avoid $avoided${placement:+, $placement}"
    fi
    mark=$(echo "${mark%%REWRITE *}$after | $reason; ${rest#* | }" | cut -c1-1000)

    # Before it is requeued: slurmctld may end what runs of it, this script too.
    ask scontrol update "JobId=$job" "AdminComment=$mark" || return
    [ "$requeue" != 0 ] || ask scontrol update "JobId=$job" Requeue=1 || return
    true >"$root/granted/$SLURM_JOB_ID.back"
    ask scontrol requeue "$job" || {
        rm -f "$root/granted/$SLURM_JOB_ID.back"
        return
    }
    turned=yes
    set -- "JobId=$job" "ExcNodeList=$own${own:+${avoided:+,}}$avoided" "StartTime=$start" "Requeue=$requeue"
    ask scontrol update "$@" || ask scontrol update "$@" || ask scontrol update "$@"
    [ -z "$gres" ] || {
        gres=$(echo "$resources" | tr , '\n' | sed "s/^$share\$/$gres/" | paste -sd , -)
        set -- "JobId=$job" "Gres=$gres" ${settings:+"$settings"}
        ask scontrol update "$@" || ask scontrol update "$@"
    }
}

# A job with a latency limit gets SMs of its own where the node's MPS can give them. Its user's comment has the limit.
case ,${SLURM_JOB_COMMENT:-}, in
    *[,:\ ]slo=*) GPUSAGE_DIVISION=${GPUSAGE_DIVISION:-partition} GPUSAGE_PRIORITY=0 ;;
    *) GPUSAGE_PRIORITY=1 ;;
esac
export GPUSAGE_DIVISION="${GPUSAGE_DIVISION:-percentage}" GPUSAGE_PRIORITY
export GPUSAGE_GPU="${CUDA_VISIBLE_DEVICES:-}" GPUSAGE_USER="${SLURM_JOB_UID:-0}" GPUSAGE_GROUP="${SLURM_JOB_GID:-}"
export GPUSAGE_SHARE_PERCENT="$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" GPUSAGE_LIMIT_S="${GPUSAGE_PROLOG_LIMIT_S:-8}"
enter() { "$program" enter "$SLURM_JOB_ID" </dev/null >/dev/null 2>&1; }
turned=
enter
if [ $? = 3 ]; then
    turn_back
    # Without those whose epilog never came; or beside the others, as it must run.
    if [ -z "$turned" ]; then
        enter
        [ $? != 3 ] || GPUSAGE_WITH_OTHERS=yes "$program" enter "$SLURM_JOB_ID" </dev/null >/dev/null 2>&1
    fi
fi
[ -n "$turned" ] || sample
exit 0
