#!/bin/sh
# Installs a package, uses it and removes it over a copy of this machine's files that goes with this process: `unshare --mount sh inside.sh PACKAGE PLACE...`
# The places must be there once it is installed, and gone when it is removed. Ends with 77 where no overlay can be mounted.
set -eu
package=$1
shift
if [ "${INSIDE:-}" = "" ]; then
    mount -t tmpfs tmpfs /mnt || exit 77
    mkdir /mnt/upper /mnt/work /mnt/root
    mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root || exit 77
    mount --rbind /proc /mnt/root/proc
    mount --rbind /dev /mnt/root/dev
    cp "$0" "$package" /mnt/root/ # the checkout may be a mount of its own
    INSIDE=yes exec chroot /mnt/root sh "/${0##*/}" "/${package##*/}" "$@"
fi
PATH=/usr/sbin:/usr/bin:/sbin:/bin
remove() {
    case $package in
        *.deb) dpkg --purge gpusage ;;
        *.rpm) rpm --erase --nodeps gpusage ;;
    esac
}
case $package in
    *.deb) dpkg --install "$package" ;;
    *.rpm) rpm --install --nodeps --force-debian "$package" 2>/dev/null || rpm --install --nodeps "$package" ;;
esac
ls -d "$@" >/dev/null
cd /
test -x /usr/libexec/gpusage/gpusage_prolog.sh
setpriv --reuid 65534 --regid 65534 --clear-groups gpusage predict timm:resnet50 --gpu v100
gpusaged --version
gpusage yarn jar
man -w gpusage-predict
bash -c '. /usr/share/bash-completion/completions/gpusage && complete -p gpusage'

mkdir -p /etc/slurm
printf 'ClusterName=c\nNodeName=n Gres=gpu:1\n' >/etc/slurm/slurm.conf
cp /etc/slurm/slurm.conf /tmp/slurm.conf
gpusage slurm install --nodes-ready --yes
! remove # slurm.conf names us
echo 'exit 1' >/usr/libexec/gpusage/gpusage_prolog.sh
case $package in # an upgrade, or the same once more: what Slurm runs is written anew
    *.deb) dpkg --install "$package" ;;
    *.rpm) rpm --upgrade --replacepkgs --nodeps --force-debian "$package" 2>/dev/null || rpm --upgrade --replacepkgs --nodeps "$package" ;;
esac
cmp /usr/libexec/gpusage/gpusage_prolog.sh /opt/gpusage/lib/python3*/site-packages/gpusage_slurm/node/prolog.sh
gpusage slurm uninstall --with-jobs --yes
cmp /etc/slurm/slurm.conf /tmp/slurm.conf
test -x /usr/libexec/gpusage/gpusage_prolog.sh # slurmds may not have read slurm.conf yet
remove
for place in "$@"; do
    if [ -e "$place" ]; then
        echo "left: $place" >&2
        exit 1
    fi
done
