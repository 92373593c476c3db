#!/bin/sh
# Runs before the files of a deb or rpm go. If slurm.conf names a missing script, Slurm fails tasks and drains nodes; so it must name none of ours.
case "$1" in
    remove | 0) ;;
    *) exit 0 ;; # an upgrade
esac
conf=${SLURM_CONF:-/etc/slurm/slurm.conf}
# A configless host has no slurm.conf, and slurmds run what slurmctld has last read.
named=
if grep -qs '^[^#]*gpusage' "$conf"; then
    named=$conf
elif timeout 10 scontrol show config 2>/dev/null | grep -q '^[A-Za-z]*\(Prolog\|Epilog\)[^=]*= .*gpusage'; then
    named=slurmctld
fi
if [ -n "$named" ]; then
    echo "gpusage: $named must not name gpusage any more when it is removed, because Slurm would drain nodes; it does. Run first: gpusage slurm uninstall --yes; scontrol reconfigure" >&2
    exit 1
fi
# Where slurmctld cannot be asked and slurmd runs, nobody knows what it will run next: the copies stay, and need nothing of gpusage.
# So do those that a NodeManager runs.
yarn=${YARN_CONF_DIR:-${HADOOP_CONF_DIR:-/etc/hadoop/conf}}/yarn-site.xml
if ! grep -qs /usr/libexec/gpusage/ "$yarn" &&
    { timeout 10 scontrol ping 2>/dev/null | grep -q UP || ! systemctl is-active --quiet slurmd 2>/dev/null; }; then
    rm -f /usr/libexec/gpusage/gpusage[-_.]* /usr/libexec/gpusage/*.sh /usr/libexec/gpusage/probe.py /usr/libexec/gpusage/README
    rmdir /usr/libexec/gpusage 2>/dev/null
fi
if [ -d /run/systemd/system ]; then
    systemctl disable --now gpusaged.service
fi
find /opt/gpusage -name __pycache__ -type d -prune -exec rm -rf {} +
exit 0
