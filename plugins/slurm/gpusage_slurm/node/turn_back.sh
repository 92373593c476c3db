#!/bin/sh
# Sends a job that would start beside another user's back to the queue: "turn_back.sh GPUSAGE-MPS", from our prolog, whose
# environment it reads. It ends with 0 if it did, and otherwise after it removed what jobs have left there that ended.
#
# The job then keeps apart from the nodes where shares of other users run, for Slurm gives a share the first GPU of a node
# that has room, even if another one is free. At its fourth start, or if no node like this one is left, it gets its whole
# GPU, so that it does not wait for long. What its user wrote stays: the nodes that it excludes, its constraint, and that
# it must not be requeued. gpusage_slurm/jobs/placement.py says how the mark is written.
program=$1 root=${GPUSAGE_MPS_FOLDER:-/run/gpusage-mps} job=$SLURM_JOB_ID node=$SLURMD_NODENAME
unset SLURM_TIME_FORMAT SLURM_CLUSTERS
export SQUEUE_LOCAL=1 SINFO_LOCAL=1

# slurmctld may be away, and the job's start waits for this script: 20 seconds for all that is asked.
deadline=$(($(date +%s) + 20))
ask() {
    seconds=$((deadline - $(date +%s)))
    [ "$seconds" -gt 0 ] && timeout -k 1 "$seconds" "$@" 2>/dev/null
}
without() { grep -vxF "$(echo "$1" | tr , '\n')"; }
joined() { paste -sd , -; }

# A job whose epilog never came is not there any more. If all of them are such, the GPU has nobody.
present=$(ask squeue -ha -t all -w "$node" -o "%A %t") || exit 1
present=$(echo "$present" | grep -vE " (PD|CD|CA|F|TO|NF|PR|BF|DL|OOM|RV)$" | cut -d " " -f 1)
neighbour=
while read -r each; do
    if echo "$present" | grep -qx "$each"; then neighbour=$each; else "$program" leave "$each" </dev/null >/dev/null 2>&1; fi
done <"$root/granted/$job.met"
[ -n "$neighbour" ] || exit 1

# Columns without any text of a user's.
row=$(ask squeue -ha -t all -j "$job" -o "%A|%F|%K|%b|%n|%x|%f" | grep "^$job|") || exit 1
IFS="|" read -r _ array task resources named excluded features <<END
$row
END
mark=$(ask squeue -ha -t all -j "$job" -O "JobID:16,Requeue:4,admin_comment:1100" | grep "^$job ") || exit 1
requeue=$(echo "$mark" | cut -c17)
mark=$(echo "$mark" | cut -c21- | sed 's/ *$//')
case $task in N/A) ;; *) job=${array}_$task ;; esac

# Of ours: what the user asked for, the share, the nodes that it avoids, its start, and what holds it to GPU types.
echo "$mark" | grep -q "gpusage [0-9a-f]\{12\} REWRITE gres/gpu[^ ]* -> gres/mps:" || exit 1
change=${mark#*REWRITE }
before=${change%% -> *} before=${before#gres/} after=${change#* -> gres/} after=${after%% | *}
share=${after%%,*} placement= avoided='' start=1
case $after in *", "*) placement=${after#*, } ;; esac
case $placement in
    "avoid "* | "apart "*)
        avoided=${placement#a???? } avoided=${avoided%%, *}
        placement=${placement#a???? "$avoided"} placement=${placement#, }
        ;;
esac
case $placement in
    "start "*)
        start=${placement#start } start=${start%%, *}
        placement=${placement#"start $start"} placement=${placement#, }
        ;;
esac
# A whole GPU that slurmctld refuses must not keep the job from running.
[ "$start" -lt 9 ] || exit 1
older=
case $resources in *gres:*) older=yes ;; esac
resources=$(echo "$resources" | sed 's/gres[:\/]//g')
case ,$resources, in *",$share,"*) ;; *) exit 1 ;; esac

# The user's own list, without what was added to it.
user_excluded=
case $excluded in "" | "(null)") ;; *) user_excluded=$(ask scontrol show hostnames "$excluded" | without "$avoided" | joined) ;; esac

# Nodes that surely may run it are like this one. Beside a share that leaves it no room it cannot start.
running=$(ask squeue -ha -t R,S,CF,CG -o "%A %U %N %b") || exit 1
nodes=$(ask sinfo -hN -t idle,mix,alloc -p "$SLURM_JOB_PARTITION" -o "%N %f %G %c %m") || exit 1
kind=$(echo "$nodes" | sed -n "s/^$node //p" | head -n 1)
units=$(echo "$kind" | cut -d " " -f 2 | "$(dirname "$0")/units_per_gpu.sh")
strangers=$(echo "$running" | awk -v user="$SLURM_JOB_UID" -v room=$((${units:-0} - ${share#mps:})) '
    $2 != user && $4 ~ /mps:[0-9]+/ { count = $4; sub(/.*mps:/, "", count); if (count + 0 <= room) print $3 }')
# A job of several nodes has a list of them, n[1-2].
case $strangers in *"["* | *,*) strangers=$(ask scontrol show hostnames "$(echo "$strangers" | joined)") || exit 1 ;; esac
strangers=$(echo "$strangers" | sort -u)
left=$(echo "$nodes" | sed -n "s|^\([^ ]*\) $kind\$|\1|p" | without "$node" | without "$strangers" | without "$user_excluded" | wc -l)
avoided=$(echo "$node $strangers" | tr ' ' '\n' | grep . | sort -u | without "$user_excluded" | joined)
reason="it would have started beside job $neighbour of another user on $node"

gres= settings='' start=$((start + 1))
if [ "$start" -gt 4 ] || [ -n "${named#"(null)"}" ] || [ "$left" = 0 ] || [ ${#avoided} -gt 256 ]; then
    # Up to 23.02, slurmctld changes no share into a GPU. All shares of one are as good.
    gres=$before begin=now+10
    [ -z "$older" ] || gres=mps:$units
    [ "$gres" != mps: ] || exit 1
    after="BACK gres/$share -> gres/$gres, start $start"
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
    begin=now+2 after="REWRITE gres/$before -> gres/$share, apart $avoided, start $start${placement:+, $placement}"
fi
mark=$(echo "${mark%%REWRITE *}$after | $reason; ${change#* | }" | cut -c1-1000)

# Before it is requeued: slurmctld may end what runs of it, this script too.
ask scontrol update "JobId=$job" "AdminComment=$mark" || exit 1
[ "$requeue" != 0 ] || ask scontrol update "JobId=$job" Requeue=1 || exit 1
true >"$root/granted/$SLURM_JOB_ID.back"
ask scontrol requeue "$job" || {
    rm -f "$root/granted/$SLURM_JOB_ID.back"
    exit 1
}
set -- "JobId=$job" "ExcNodeList=$user_excluded${user_excluded:+${avoided:+,}}$avoided" "StartTime=$begin" "Requeue=$requeue"
ask scontrol update "$@" || ask scontrol update "$@" || ask scontrol update "$@"
[ -z "$gres" ] || {
    gres=$(echo "$resources" | tr , '\n' | sed "s/^$share\$/$gres/" | joined)
    set -- "JobId=$job" "Gres=$gres" ${settings:+"$settings"}
    ask scontrol update "$@" || ask scontrol update "$@"
}
exit 0
