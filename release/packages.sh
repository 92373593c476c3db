#!/bin/sh
# Makes dist/gpusage_*.deb and dist/gpusage-*.rpm from the wheel in dist/ and the manual pages in build/man. `make packages` calls it.
# $1: the Python of the target system (3.11, 3.12, ...); it need not be installed here.
set -eu
cd "$(dirname "$0")/.."
PYTHON_VERSION=$1
VERSION=$(.venv/bin/python -c 'from importlib.metadata import version; print(version("gpusage"))')
case $(uname -m) in
    x86_64) ARCHITECTURE=amd64 ;;
    aarch64) ARCHITECTURE=arm64 ;;
    *) echo "packages: the processor must be x86_64 or aarch64; got $(uname -m)" >&2 && exit 1 ;;
esac
export ARCHITECTURE PYTHON_VERSION VERSION

root=build/package/root
home=$root/opt/gpusage
modules=$home/lib/python$PYTHON_VERSION/site-packages
rm -rf build/package
mkdir -p "$modules" "$home/bin" $root/usr/share/man/man1 $root/usr/lib/systemd/system \
    $root/usr/share/bash-completion/completions

# We build the virtual environment by hand: it is for its final path, and for a Python that may not be installed here.
uv pip install --quiet --target "$modules" --python-version "$PYTHON_VERSION" --only-binary :all: --link-mode copy \
    --python-platform "$(uname -m)-manylinux_2_28" "gpusage[metrics,postgresql,yarn] @ file://$(echo "$PWD"/dist/gpusage-"$VERSION"-*.whl)"
rm -rf "$modules/bin" "$modules/.lock"
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$PYTHON_VERSION" >"$home/pyvenv.cfg"
ln -s "/usr/bin/python$PYTHON_VERSION" "$home/bin/python"
for command in gpusage:gpusage.cli gpusaged:gpusage.service.daemon; do
    printf '#!/opt/gpusage/bin/python\nimport sys\n\nfrom %s import main\n\nsys.exit(main())\n' "${command#*:}" >"$home/bin/${command%:*}"
    chmod 755 "$home/bin/${command%:*}"
done

sed 's|^ExecStart=gpusage|ExecStart=/opt/gpusage/bin/gpusage|' core/gpusage/service/gpusaged.service >"$root/usr/lib/systemd/system/gpusaged.service"
for page in build/man/*.1; do
    case ${page##*/} in # these commands are in gpusage-desk
        gpusage-plan.1 | gpusage-simulate.1 | gpusage-train.1 | gpusage-evaluate.1 | gpusage-profile.1 | *-sandbox*) continue ;;
    esac
    gzip -9n <"$page" >"$root/usr/share/man/man1/${page##*/}.gz"
done
_GPUSAGE_COMPLETE=bash_source .venv/bin/gpusage >$root/usr/share/bash-completion/completions/gpusage
_GPUSAGE_COMPLETE=zsh_source .venv/bin/gpusage >build/package/_gpusage

for format in deb rpm; do
    .venv/bin/nfpm package --config release/nfpm.yaml --packager $format --target dist
done
