#!/bin/sh
# Runs after the files of a deb or rpm are gone. Keeps the store of decisions in /var/lib/gpusage: an admin may want to read it.
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
exit 0
