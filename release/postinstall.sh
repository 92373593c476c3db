#!/bin/sh
# Runs after the files of a deb or rpm are in place. Compiles the modules, because users cannot write below /opt, and writes anew what Slurm runs on this
# host: copies in /usr/libexec/gpusage, which the package does not own, so that no upgrade takes one away. Starts no service that did not run.
cd / || exit 0 # Python looks for modules where it starts, which may be a folder that somebody else may write to
find /opt/gpusage -name __pycache__ -type d -prune -exec rm -rf {} +
/opt/gpusage/bin/python -I -m compileall -qq -j 0 /opt/gpusage/lib || echo 'gpusage: the modules could not be compiled; commands start more slowly' >&2
/opt/gpusage/bin/gpusage slurm install --node --yes >/dev/null ||
    echo 'gpusage: /usr/libexec/gpusage could not be written; Slurm goes on with what lies there. Run: gpusage slurm install --node --yes' >&2
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart gpusaged.service
fi
exit 0
