#!/bin/sh
# gpusage's Epilog: as root on the node, gives back a job's part of a GPU; the last job's end stops the MPS control daemon.
# Whatever goes wrong, it exits with 0, because any other status takes the node out of service.
trap 'exit 0' EXIT # also if the shell itself ends the script

here=$(dirname "$(readlink -f "$0")")
[ ! -x "$here/usage.sh" ] || "$here/usage.sh" end # of the job's usage
for program in "$here/gpusage-mps" "$here/../../gpusage/node/dividing/gpusage-mps" "$here/../../../../core/gpusage/node/dividing/gpusage-mps"; do
    [ ! -x "$program" ] || break # beside this script, as installed, or in a checkout
done
[ ! -x "$program" ] || "$program" leave "${SLURM_JOB_ID:-}" </dev/null >/dev/null 2>&1
exit 0
