"""A real HDFS beside a sandbox's YARN: one NameNode, one DataNode, of jars from Maven Central."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

import yarn_applications as apps
from gpusage_sandboxes.host import cache_folder, free_ports, lock
from gpusage_sandboxes.yarn import Sandbox
from gpusage_sandboxes.yarn.settings import render_configuration

# What the sandbox's own jars lack of a NameNode's and a DataNode's.
JARS = ("org.apache.hadoop:hadoop-hdfs:3.4.2", "io.netty:netty-codec-http:4.1.118.Final")
SERVER = "org.apache.hadoop.hdfs.server"
OPTIONS = ("-Xmx128m", "--add-opens=java.base/java.lang=ALL-UNNAMED", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@contextmanager
def running(sandbox: Sandbox, folder: Path) -> Iterator[Path]:
    """Run an HDFS in *folder* until the end of the block; yield the configuration of a client of both."""
    rpc, http, *others = (f"127.0.0.1:{port}" for port in free_ports(5))
    conf = folder / "conf"
    for name in ("hdfs", "datanode", "static"):
        (conf / "webapps" / name).mkdir(parents=True)  # of a distribution, and empty here
    for path in sandbox.layout.conf("client").iterdir():
        (conf / path.name).write_bytes(path.read_bytes())
    core = {"fs.defaultFS": f"hdfs://{rpc}", "hadoop.tmp.dir": str(folder / "tmp")}
    (conf / "core-site.xml").write_text(render_configuration(core))
    (conf / "hdfs-site.xml").write_text(render_configuration(settings(folder, http, others)))
    command = java(sandbox, folder, conf)
    with (folder / "log").open("w") as log:
        subprocess.run([*command, f"{SERVER}.namenode.NameNode", "-format"], check=True, stdout=log, stderr=log)
        daemons = [
            subprocess.Popen([*command, f"{SERVER}.{name}"], stdout=log, stderr=log)
            for name in ("namenode.NameNode", "datanode.DataNode")
        ]
        try:
            apps.wait_until(sandbox, lambda: has_started(http), f"HDFS works; see {folder}/log", 60)
            yield conf
        finally:
            for daemon in daemons:
                daemon.kill()
                daemon.wait()


def settings(folder: Path, http: str, others: list[str]) -> dict[str, str]:
    """Return hdfs-site.xml's settings."""
    names = ("dfs.datanode.address", "dfs.datanode.http.address", "dfs.datanode.ipc.address")
    return {
        "dfs.namenode.http-address": http,
        "dfs.namenode.name.dir": str(folder / "name"),
        "dfs.datanode.data.dir": str(folder / "data"),
        "dfs.replication": "1",
        "dfs.namenode.safemode.extension": "0",
        "dfs.permissions.enabled": "false",  # users have no homes yet
        **dict(zip(names, others, strict=True)),
    }


def java(sandbox: Sandbox, folder: Path, conf: Path) -> list[str]:
    """Return the command line of a Java that finds HDFS's classes."""
    classpath = f"{conf}:{jars(sandbox)}/*:{sandbox.hadoop.jars}/*"
    return [str(sandbox.hadoop.java.program), *OPTIONS, f"-Djava.io.tmpdir={folder}", "-cp", classpath]


def jars(sandbox: Sandbox) -> Path:
    """Return the folder of `JARS`, fetched with Maven on first use."""
    place = cache_folder().absolute() / "hdfs-for-tests"
    with lock(place):
        if len(list(place.glob("*.jar"))) < len(JARS):
            java = sandbox.hadoop.java
            fetch = [str(java.maven), "-q", "-B", f"-Dmaven.repo.local={place.parent / 'maven'}"]
            goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
            for jar in JARS:
                command = [*fetch, goal, f"-Dartifact={jar}", f"-DoutputDirectory={place}"]
                subprocess.run(command, check=True, env=java.maven_environment(), cwd=place.parent)
    return place


def has_started(http: str) -> bool:
    """Return whether the NameNode has a DataNode to write to."""
    url = f"http://{http}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    try:
        return bool(requests.get(url, timeout=10).json()["beans"][0]["NumLiveDataNodes"])
    except (requests.RequestException, ValueError, LookupError):
        return False
