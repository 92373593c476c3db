#!/bin/sh
# Runs before the files of a deb or rpm go. If slurm.conf names a missing script, Slurm fails tasks and drains nodes; so it must name none of ours.
case "$1" in
    remove | 0) ;;
    *) exit 0 ;; # an upgrade
esac
conf=${SLURM_CONF:-/etc/slurm/slurm.conf}
if grep -qs '^[^#]*gpusage' "$conf"; then
    echo "gpusage: $conf must not name gpusage any more when it is removed, because Slurm would drain nodes; it does. Run first: gpusage slurm uninstall --yes; scontrol reconfigure" >&2
    exit 1
fi
if [ -d /run/systemd/system ]; then
    systemctl disable --now gpusaged.service gpusage-late.service
fi
find /opt/gpusage -name __pycache__ -type d -prune -exec rm -rf {} +
exit 0
