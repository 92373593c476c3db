"""The books of a sandbox: slurmdbd on a MariaDB of the sandbox's own, which listens at a socket in its folder alone."""

from __future__ import annotations

from gpusage.boundary.operating_system import user_name
from gpusage_sandboxes.sandbox import Sandbox
from gpusage_sandboxes.slurm.installation import Installation
from gpusage_sandboxes.slurm.layout import Host, Layout

ACCOUNT = "sandbox"
_SLURMDBD = """\
AuthType=auth/munge
AuthInfo=socket={munge_socket}
DbdHost=localhost
DbdPort={port}
SlurmUser={user}
PidFile={run}/slurmdbd.pid
LogFile={logs}/slurmdbd.log
PluginDir={plugins}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=slurm
"""
_SLURM = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={port}
AccountingStoragePass={munge_socket}
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
AccountingStorageEnforce=associations,limits,qos
"""
_DATABASE_OPTIONS = (
    "--no-defaults",
    "--skip-networking",
    "--skip-grant-tables",  # nobody else can enter the folder of its socket
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=16M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-lock-wait-timeout=900",
)

_MAKE_TABLES = '{ echo "create database slurm;"; echo "use mysql;"; cat "$1" "$2"; } | { shift 2; "$@"; }'
"""slurmdbd would make its database itself. But MariaDB's client library 3.4.10 (Debian 13) reads no answer on a
connection that was once refused, as one to a database that is not there yet is."""


def lay_out_accounting(layout: Layout, installation: Installation, host: Host) -> str:
    """Write what slurmdbd reads, and return the lines by which slurmctld finds it."""
    port = host.ports[-1]
    text = _SLURMDBD.format(
        munge_socket=layout.munge_socket,
        port=port,
        user=host.user,
        run=layout.run,
        logs=layout.logs,
        plugins=installation.plugins,
    )
    # slurmdbd refuses a file that others may read.
    layout.slurmdbd_conf.touch(mode=0o600)
    layout.slurmdbd_conf.write_text(text, encoding="utf-8")

    return _SLURM.format(port=port, munge_socket=layout.munge_socket)


def start_accounting(sandbox: Sandbox, installation: Installation, layout: Layout) -> None:
    """Start MariaDB and slurmdbd, and give this user an account.

    Raises:
        RequestError: One of them does not come up.
    """
    share = next(path.parent for path in installation.root.glob("usr/share/*/*_system_tables.sql"))
    data = layout.state / "mariadb"
    (data / "mysql").mkdir(parents=True)
    temporary = layout.state / "mariadb.tmp"  # in /tmp another MariaDB that starts takes files away
    temporary.mkdir()
    command = (
        "mariadbd",
        *_DATABASE_OPTIONS,
        f"--user={user_name()}",
        f"--datadir={data}",
        f"--tmpdir={temporary}",
        f"--lc-messages-dir={share}",
        f"--character-sets-dir={share}/charsets",
    )
    # slurmdbd keeps procedures, and they stand in the tables of MariaDB's own.
    tables = [*share.glob("*_system_tables.sql"), *share.glob("*_system_tables_data.sql")]
    sandbox.run("sh", "-c", _MAKE_TABLES, "sh", *map(str, tables), *command, "--bootstrap")
    files = (
        f"--socket={layout.database_socket}",
        f"--pid-file={layout.pid_file('mariadbd')}",
        f"--log-error={layout.log_file('mariadbd')}",
    )
    sandbox.run("sh", "-c", 'setsid "$@" >/dev/null 2>&1 &', "sh", *command, *files)
    sandbox.wait_for(layout.database_socket.exists, "MariaDB answers")

    sandbox.run("slurmdbd")
    sandbox.wait_for(
        lambda: sandbox.run("sacctmgr", "-n", "show", "cluster", check=False).returncode == 0, "slurmdbd answers"
    )

    for words in (
        ("cluster", _cluster_name(layout)),
        ("account", ACCOUNT),
        ("user", user_name(), f"account={ACCOUNT}"),
    ):
        sandbox.run("sacctmgr", "-i", "add", *words)


def _cluster_name(layout: Layout) -> str:
    lines = layout.slurm_conf.read_text(encoding="utf-8").splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("ClusterName="))
