#!/bin/sh
# Runs after the files of a deb or rpm are in place. Compiles the modules, because users cannot write below /opt. Starts no service that did not run.
find /opt/gpusage -name __pycache__ -type d -prune -exec rm -rf {} +
/opt/gpusage/bin/python -m compileall -qq -j 0 /opt/gpusage/lib || echo 'gpusage: the modules could not be compiled; commands start more slowly' >&2
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart gpusaged.service gpusage-late.service
fi
exit 0
