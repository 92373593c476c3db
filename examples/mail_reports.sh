#!/bin/sh
# Mails each user who had a job with a GPU in the last 7 days what these used, and one line to change.
# As root, for example as /etc/cron.weekly/gpusage; a user whose name is a line of the file below gets none.
set -eu
without=${GPUSAGE_NO_MAIL:-/etc/gpusage/no_mail}
[ -e "$without" ] || without=/dev/null
# Only names that a host may have: clients of a YARN without Kerberos choose theirs, and mail runs what follows a "|".
users='import json, re, sys
names = (each["name"] for each in json.load(sys.stdin)["groups"]["user"])
for name in filter(re.compile("[A-Za-z_][A-Za-z0-9._-]{0,31}").fullmatch, names):
    print(name)'
gpusage report --since 7d --json | python3 -c "$users" | grep -vxFf "$without" |
    while IFS= read -r user; do
        text=$(gpusage report --since 7d --user "$user" --text </dev/null) || continue
        printf '%s\n' "$text" | mail -s "Your jobs on GPUs" -- "$user" || echo "gpusage: no mail to $user" >&2
    done
