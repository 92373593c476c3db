#!/bin/sh
# Mails each user who had a job with a GPU in the last 7 days what these used, and one line to change.
# As root, for example as /etc/cron.weekly/gpusage; a user whose name is a line of the file below gets none.
set -eu
without=${GPUSAGE_NO_MAIL:-/etc/gpusage/no_mail}
[ -e "$without" ] || without=/dev/null
users='import json, sys; print(*(each["name"] for each in json.load(sys.stdin)["groups"]["user"]), sep="\n")'
gpusage report --since 7d --json | python3 -c "$users" | grep -vxFf "$without" | while read -r user; do
    gpusage report --since 7d --user "$user" --text </dev/null | mail -s "Your jobs on GPUs" "$user"
done
