"""A node's GPUs, faked: a process that stands for the driver keeps the memory, and refuses what the driver refuses.

The real pieces stay real: the kernel says who asks (number and user of the process at the other end of a socket) and
in which cgroup that process is, so no variable, namespace or double fork hides anybody. Only the device is faked. What
NVIDIA's programs do with it follows their documentation; docs/slurm.md lists what no GPU has shown yet.

One file has three names: `fake-gpu` is any program that computes on a GPU, `nvidia-smi` is NVIDIA's, and
`fake_gpu.py serve` is the driver. Both programs find their driver by the word that `walls.FakeGpus` writes into them.
It needs Python 3.9 or newer and nothing else, because other users run it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import socketserver
import struct
import sys
import time
from pathlib import Path

DRIVER = "@fake-gpu-of-nobody"  # `walls.FakeGpus` replaces this word
SUCCESS, OUT_OF_MEMORY, DEVICE_UNAVAILABLE, NO_DEVICE, NOT_PERMITTED, CLIENT_TERMINATED = 0, 2, 46, 100, 800, 809
NAMES = {
    OUT_OF_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY",
    DEVICE_UNAVAILABLE: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    NO_DEVICE: "CUDA_ERROR_NO_DEVICE",
    NOT_PERMITTED: "CUDA_ERROR_NOT_PERMITTED",
    CLIENT_TERMINATED: "CUDA_ERROR_MPS_CLIENT_TERMINATED",
}
"""cuda.h's numbers."""
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NO_SUCH_OBJECT, NO_DRIVER = 2, 3, 4, 6, 9
"""What nvidia-smi's manual page lists as exit codes."""
MAX = 1 << 62
FIRST_RELEASE_WITH_LIMITS = 615
DEFAULTS = {
    "driver": "615.71",
    "backend": "misc",  # "dmem": the kernel's, where the limits of all ancestors hold
    "reports": "limit",  # "whole": a program sees the whole GPU, whatever limit it has
    "cgroups": "/sys/fs/cgroup",
    "controller": None,  # of cgroup v1, whose hierarchy it is; without one the folder's name, or none where it is v2's
    "tree": False,  # the cgroups are plain folders, and cgroup.procs are plain files of theirs
    "mode": "Default",
    "context_mib": 0,
    "gpus": [
        {
            "uuid": "GPU-8932f937-d72c-4106-0000-000000000000",
            "name": "NVIDIA H100 80GB HBM3",
            "memory_mib": 81559,
            "mig": False,
        }
    ],
}


class RefusedError(Exception):
    """What the driver responses instead of success."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text or NAMES.get(code, str(code)))
        self.code = code


# The driver -----------------------------------------------------------------------------------------------------------


class Driver:
    """All GPUs of a node: their settings, their limits, and who has which memory of them."""

    def __init__(self, settings: dict) -> None:
        self.settings = {**DEFAULTS, **settings}
        self.limits: dict[tuple[str, str], list[int]] = {}  # of a GPU and a cgroup: soft and hard, in MiB
        self.numbers: dict[tuple[str, str], int] = {}  # which cgroup of that name it was: a limit goes with its cgroup
        self.devices: dict[str, list[int]] = {}  # what a cgroup's device filter lets through
        self.memory: list[dict] = []
        self.refusals: list[dict] = []
        self.terminated: set[tuple[int, str]] = set()

    def respond(self, pid: int, uid: int, request: dict) -> dict:
        """Do what process *pid* of user *uid* asks for."""
        self.memory = [each for each in self.memory if started(each["pid"]) == each["started"]]
        self.limits = {of: limit for of, limit in self.limits.items() if self.number(of[1]) == self.numbers[of]}
        who = {"pid": pid, "uid": uid, "started": started(pid), "cgroup": self.cgroup_of(pid)}
        try:
            return {"code": SUCCESS, **getattr(self, f"do_{request['verb']}")(who, request)}
        except RefusedError as refusal:
            self.refusals.append({**who, "code": refusal.code, "verb": request["verb"], "mib": request.get("mib")})
            return {"code": refusal.code, "text": str(refusal)}

    def cgroup_of(self, pid: int) -> str:
        """Return the cgroup of *pid* below the folder of all cgroups, as `/a/b`."""
        root = Path(self.settings["cgroups"])
        if not self.settings["tree"]:
            controller = self.settings["controller"]
            if controller is None:
                controller = "" if (root / "cgroup.controllers").exists() else root.name
            lines = [each.split(":", 2) for each in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
            return next((path for _, controllers, path in lines if controller in controllers.split(",")), "/")
        files = sorted(root.rglob("cgroup.procs"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        members = {number: file.parent for file in reversed(files) for number in file.read_text().split()}
        while pid > 1:
            if str(pid) in members:
                return "/" + str(members[str(pid)].relative_to(root)).strip(".")
            pid = parent_of(pid)
        return "/"

    # CUDA

    def visible(self, who: dict, request: dict) -> list[dict]:
        """Return the GPUs that a process sees, in its order."""
        gpus = self.settings["gpus"]
        for cgroup in ancestors(who["cgroup"]):
            if cgroup in self.devices:
                gpus = [self.settings["gpus"][number] for number in self.devices[cgroup]]
                break
        daemon = request.get("daemon")
        if daemon and daemon["device"]:
            gpus = [gpus[number] for number in chosen(daemon["device"], gpus)]
        wanted = request["environment"].get("CUDA_VISIBLE_DEVICES")
        return gpus if wanted is None else [gpus[number] for number in chosen(wanted, gpus)]

    def device(self, who: dict, request: dict) -> dict:
        """Return the GPU that the process means, if MPS and the compute mode let it in."""
        gpus = self.visible(who, request)
        daemon = request.get("daemon")
        if daemon:
            served = daemon["serves"]
            if served is None:  # a daemon of root's that serves one user, the first that came
                served = next((each["uid"] for each in self.memory if each["pipe"] == daemon["pipe"]), who["uid"])
            if served not in ("any", who["uid"]):
                raise RefusedError(NOT_PERMITTED)
        if request.get("device", 0) >= len(gpus):
            raise RefusedError(NO_DEVICE)
        gpu = gpus[request.get("device", 0)]
        if (who["pid"], gpu["uuid"]) in self.terminated:
            raise RefusedError(CLIENT_TERMINATED)
        others = [
            each
            for each in self.on(gpu)
            if each["pid"] != who["pid"] and not (daemon and each["pipe"] == daemon["pipe"])
        ]
        if others and self.settings["mode"] == "Exclusive_Process":
            raise RefusedError(DEVICE_UNAVAILABLE)
        return gpu

    def on(self, gpu: dict, cgroup: str = "/") -> list[dict]:
        """Return the memory that processes of *cgroup* and below have of *gpu*."""
        return [each for each in self.memory if each["gpu"] == gpu["uuid"] and cgroup in ancestors(each["cgroup"])]

    def used(self, gpu: dict, cgroup: str = "/") -> int:
        """Return the MiB that they have."""
        return sum(
            each["mib"] + each["context_mib"] for each in self.on(gpu, cgroup) if cgroup == "/" or not each["managed"]
        )

    def limits_on(self, gpu: dict, cgroup: str) -> list[tuple[str, int, int]]:
        """Return the cgroups whose limits hold for *cgroup*, the nearest first; the driver's own count has one."""
        matches = [
            (each, *self.limits[gpu["uuid"], each]) for each in ancestors(cgroup) if (gpu["uuid"], each) in self.limits
        ]
        return matches if self.settings["backend"] == "dmem" else matches[:1]

    def pinned_mib(self, request: dict, visible_count: int) -> int | None:
        """Return the limit of a client of MPS: the least of its variable's and its namespace's.

        An entry for a GPU that the client does not see drops them all.
        """
        daemon = request.get("daemon")
        if not daemon:
            return None
        entries = [
            each for each in request["environment"].get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").split(",") if each
        ]
        parsed = [re.fullmatch(r"\s*(\d+)=(\d+)([MG])B?\s*", each) for each in entries]
        if any(each and int(each[1]) >= visible_count for each in parsed):
            return None
        matches = [
            int(each[2]) * (1024 if each[3] == "G" else 1)
            for each in parsed
            if each and int(each[1]) == request.get("device", 0)
        ]
        return min([*matches, *([daemon["pinned_mib"]] if daemon["pinned_mib"] is not None else [])], default=None)

    def room(self, who: dict, request: dict, gpu: dict, wanted: int = 0) -> int:
        """Return how many MiB more the process can have."""
        own = [each for each in self.on(gpu) if each["pid"] == who["pid"]]
        context = 0 if own else self.settings["context_mib"]
        free = gpu["memory_mib"] - self.used(gpu)
        if request.get("managed"):
            return MAX
        rooms = []
        for cgroup, soft, hard in self.limits_on(gpu, who["cgroup"]):
            used = self.used(gpu, cgroup)
            rooms.append(hard - used)
            if free < wanted + context and used + wanted + context <= soft:
                free += self.evict(gpu, cgroup)
        pinned = self.pinned_mib(request, len(self.visible(who, request)))
        if pinned is not None:
            rooms.append(pinned - sum(each["mib"] for each in own) + context)
        return max(min([free, *rooms]) - context, 0)

    def evict(self, gpu: dict, but: str) -> int:
        """End the MPS clients of cgroups that have more than their soft limit, and return how many MiB that frees."""
        before = self.used(gpu)
        for (uuid, cgroup), (soft, _) in self.limits.items():
            if uuid == gpu["uuid"] and cgroup != but and self.used(gpu, cgroup) > soft:
                ended = [each for each in self.on(gpu, cgroup) if each["pipe"]]
                self.terminated |= {(each["pid"], uuid) for each in ended}
                self.memory = [each for each in self.memory if each not in ended]
        return before - self.used(gpu)

    def do_allocate(self, who: dict, request: dict) -> dict:
        """Allocate memory: so many MiB, or all that there is."""
        gpu = self.device(who, request)
        wanted = request["mib"]
        room = self.room(who, request, gpu, wanted or 0)
        mib = room if wanted is None else wanted
        if mib > room:
            raise RefusedError(OUT_OF_MEMORY, f"CUDA_ERROR_OUT_OF_MEMORY: asked for {mib} MiB, {room} MiB free")
        context = 0 if any(each["pid"] == who["pid"] for each in self.on(gpu)) else self.settings["context_mib"]
        pipe = request["daemon"]["pipe"] if request.get("daemon") else ""
        managed = bool(request.get("managed"))
        self.memory.append(
            {**who, "gpu": gpu["uuid"], "mib": mib, "context_mib": context, "pipe": pipe, "managed": managed}
        )
        return {"mib": mib, "gpu": gpu["uuid"], "mps": bool(pipe)}

    def do_give_back(self, who: dict, _: dict) -> dict:
        """Free all memory of the process."""
        self.memory = [each for each in self.memory if each["pid"] != who["pid"]]
        return {}

    def do_info(self, who: dict, request: dict) -> dict:
        """Answer cuMemGetInfo: a limit of one's cgroup is the total, one of MPS only the free memory."""
        gpu = self.device(who, request)
        total = self.seen_mib(who, gpu)
        free = min(self.room(who, request, gpu), total)
        return {"free_mib": free, "total_mib": total, "gpu": gpu["uuid"], "gpus": len(self.visible(who, request))}

    def seen_mib(self, who: dict, gpu: dict) -> int:
        """Return the total that a program sees."""
        limits = (
            self.limits_on(gpu, who["cgroup"]) if self.settings["reports"] == "limit" and not gpu.get("mig") else []
        )
        return min([gpu["memory_mib"], *(hard for _, _, hard in limits[:1])])

    # nvidia-smi

    def folder(self, cgroup: str) -> Path:
        """Return where a cgroup is."""
        return Path(self.settings["cgroups"]) / cgroup.lstrip("/")

    def number(self, cgroup: str) -> int:
        """Return the kernel's number of a cgroup; 0 where there is none."""
        return self.folder(cgroup).stat().st_ino if self.folder(cgroup).is_dir() else 0

    def named(self, who: dict, name: str | None) -> list[dict]:
        """Return the GPUs of this *name* (number or UUID) among those that the process may open."""
        gpus = self.visible(who, {"environment": {}})
        matches = gpus if name is None else [gpus[number] for number in chosen(name, gpus)]
        if not matches:
            raise RefusedError(NO_SUCH_OBJECT, "No devices were found")
        return matches

    def do_query(self, who: dict, request: dict) -> dict:
        """Answer --query-gpu."""
        lines = []
        for gpu in self.named(who, request["gpu"]):
            facts = {
                "index": self.visible(who, {"environment": {}}).index(gpu),
                "uuid": gpu["uuid"],
                "name": gpu["name"],
                "gpu_name": gpu["name"],
                "driver_version": self.settings["driver"],
                "compute_mode": self.settings["mode"],
                "mig.mode.current": "Enabled" if gpu.get("mig") else "Disabled",
                "memory.total": self.seen_mib(who, gpu),
                "memory.used": self.used(gpu),
                "memory.free": self.seen_mib(who, gpu) - self.used(gpu),
            }
            lines.append(", ".join(str(facts.get(field, "[Not Supported]")) for field in request["fields"]))
        return {"lines": lines}

    def do_apps(self, _: dict, __: dict) -> dict:
        """Answer --query-compute-apps."""
        return {"lines": [f"{each['gpu']}, {each['pid']}, {each['mib'] + each['context_mib']}" for each in self.memory]}

    def cgroup_named(self, name: str) -> str:
        """Return the cgroup at a path, as `/a/b`."""
        root = str(self.settings["cgroups"]).rstrip("/")
        if not name.startswith(f"{root}/") or not Path(name).is_dir():
            raise RefusedError(NO_SUCH_OBJECT, f"cgroup {name} is not below {root}")
        return "/" + str(Path(name).relative_to(root))

    def supported(self, gpu: dict, cgroup: str) -> None:
        """Refuse limits where the driver has none: on MIG, or for a cgroup without dmem."""
        if gpu.get("mig"):
            raise RefusedError(NOT_SUPPORTED, "memory-limits: Not Supported")
        above = self.folder(cgroup).parent / "cgroup.subtree_control"
        if self.settings["backend"] == "dmem" and self.settings["tree"] and "dmem" not in above.read_text():
            raise RefusedError(NOT_SUPPORTED, f"cgroup {cgroup} has no dmem controller")

    def do_set_limits(self, who: dict, request: dict) -> dict:
        """Set soft and hard limits of a cgroup: root alone."""
        (gpu,) = self.named(who, request["gpu"])
        if who["uid"] not in (0, os.getuid()):
            raise RefusedError(NO_PERMISSION, "Insufficient Permissions")
        cgroup = self.cgroup_named(request["cgroup"])
        self.supported(gpu, cgroup)
        soft, hard = self.limits.get((gpu["uuid"], cgroup), [0, MAX])
        soft = soft if request["soft"] is None else mib_of(request["soft"], 0, gpu["memory_mib"])
        hard = hard if request["hard"] is None else mib_of(request["hard"], MAX, MAX)
        if soft > hard:
            raise RefusedError(INVALID_ARGUMENT, "the soft limit is above the hard limit")
        self.limits[gpu["uuid"], cgroup] = [soft, hard]
        self.numbers[gpu["uuid"], cgroup] = self.number(cgroup)
        if (soft, hard) == (0, MAX):
            del self.limits[gpu["uuid"], cgroup]
        return {"lines": [f"Memory limits of {request['cgroup']} on GPU {gpu['uuid']} were set."]}

    def do_get_limits(self, who: dict, request: dict) -> dict:
        """Read a cgroup's limits: anybody."""
        lines = []
        cgroup = self.cgroup_named(request["cgroup"])
        for gpu in self.named(who, request["gpu"]):
            self.supported(gpu, cgroup)
            soft, hard = self.limits.get((gpu["uuid"], cgroup), [0, MAX])
            lines += [
                f"GPU {gpu['uuid']}",
                f"    Soft Limit : {soft} MiB",
                f"    Hard Limit : {'max' if hard == MAX else f'{hard} MiB'}",
            ]
            lines += [f"    Current Used : {self.used(gpu, cgroup)} MiB"]
        return {"lines": lines}

    # What tests alone ask

    def do_state(self, _: dict, __: dict) -> dict:
        """Return all that the driver knows."""
        limits = [[uuid, cgroup, soft, hard] for (uuid, cgroup), (soft, hard) in self.limits.items()]
        return {"settings": self.settings, "limits": limits, "memory": self.memory, "refusals": self.refusals}

    def do_configure(self, _: dict, request: dict) -> dict:
        """Change settings, or what a cgroup's device filter lets through."""
        self.settings.update(request.get("settings", {}))
        self.devices.update(request.get("devices", {}))
        return {}


def started(pid: int) -> int:
    """Return when a process started, in ticks; 0 where there is none, or one that is dead and waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def ancestors(cgroup: str) -> list[str]:
    """Return *cgroup* and those above it, the nearest first."""
    path = Path(cgroup)
    return [str(path), *map(str, path.parents)]


def chosen(wanted: str, gpus: list[dict]) -> list[int]:
    """Return the places of the *wanted* GPUs, numbers or UUIDs; what follows one that is not there does not count."""
    matches: list[int] = []
    for word in filter(None, wanted.split(",")):
        places = [
            place
            for place, gpu in enumerate(gpus)
            if word == str(place) or (word.startswith("GPU-") and gpu["uuid"].startswith(word))
        ]
        if not places:
            break
        matches += places[:1]
    return matches


def mib_of(text: str, default: int, maximum: int) -> int:
    if text in ("default", "max"):
        return default if text == "default" else maximum
    if not text.isdigit():
        raise RefusedError(INVALID_ARGUMENT, f"a limit is a whole number of MiB, max or default; got {text}")
    return int(text)


class Listener(socketserver.StreamRequestHandler):
    """One question, one answer."""

    def handle(self) -> None:
        """Answer one."""
        pid, uid, _ = struct.unpack("3i", self.request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        response = self.server.driver.respond(pid, uid, json.loads(self.rfile.readline()))
        self.wfile.write(json.dumps(response).encode() + b"\n")


class Server(socketserver.UnixStreamServer):
    """Answers one after the other, as a lock would have it."""

    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a program that was ended while it asked."""
        if not isinstance(sys.exc_info()[1], (BrokenPipeError, ConnectionResetError)):
            super().handle_error(request, client_address)


def serve(name: str, settings: dict) -> None:
    """Be the driver until somebody ends this process."""
    with Server("\0" + name[1:], Listener) as server:
        server.driver = Driver(settings)
        print("ready", flush=True)
        server.serve_forever()


# The programs ---------------------------------------------------------------------------------------------------------


def ask(verb: str, **request: object) -> dict:
    """Ask the driver, as this process."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        try:
            client.connect("\0" + DRIVER[1:])
        except OSError:
            return {"code": NO_DRIVER, "text": "couldn't communicate with the NVIDIA driver"}
        client.sendall(json.dumps({"verb": verb, **request}).encode() + b"\n")
        return json.loads(client.makefile().readline())


def cuda() -> dict:
    """Return what CUDA's library reads before it asks the driver: variables, and the MPS daemon at hand."""
    environment = {name: value for name, value in os.environ.items() if name.startswith("CUDA_")}
    return {
        "environment": environment,
        "daemon": daemon_at(environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")),
    }


def daemon_at(folder: str) -> dict | None:
    """Return the daemon that listens at the pipe folder; without one there is no MPS, and no limit of it."""
    pipe, space = Path(folder), None
    try:
        if not (pipe / "running").exists() and (pipe / "../../running").exists():
            pipe, space = Path(os.path.normpath(pipe / "../..")), pipe
        started_with = (pipe / "running").read_text()
        owner = (pipe / "running").stat().st_uid
    except OSError:
        return None
    serves: object = None if owner == 0 else owner
    limits = ""
    if space is not None:
        limits = read(space / "limits")
        user = re.search(r"--uid=(\d+)", read(space.parent / "server"))
        serves = int(user[1]) if user else serves
    options = started_with.partition(" device=")[0].split()
    if "-m" in options or "-multiuser-server" in options:
        serves = "any"
    pinned = re.search(r"--pinned-memory-limit=(\d+)([MG])", limits)
    device = re.search(r" device=(\S*)", started_with)
    return {
        "pipe": str(pipe),
        "serves": serves,
        "device": device[1] if device else "",
        "pinned_mib": int(pinned[1]) * (1024 if pinned[2] == "G" else 1) if pinned else None,
    }


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def compute(arguments: list[str]) -> int:
    """Be a program that computes: take memory, hold it, and end as real ones end."""
    parser = argparse.ArgumentParser(prog="fake-gpu")
    parser.add_argument("verb", choices=["take", "info"])
    parser.add_argument("mib", nargs="*", help="one allocation after the other; 'all' is what there is")
    parser.add_argument("--device", type=int, default=0, help="among those that it sees")
    parser.add_argument("--hold", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--until", type=Path, metavar="FILE", help="hold it until this file is there")
    parser.add_argument("--managed", action="store_true", help="cudaMallocManaged")
    parser.add_argument(
        "--say", type=Path, metavar="FILE", help="write the responses here, one a line, and not to the output"
    )
    parser.add_argument("--catch", action="store_true", help="catch the error, and go on with what it has")
    options = parser.parse_args(arguments)
    words = {"device": options.device, "managed": options.managed, **cuda()}
    responses = [ask("info", **words)] if options.verb == "info" else []
    for mib in options.mib:
        responses.append(ask("allocate", mib=None if mib == "all" else int(mib), **words))
        if responses[-1]["code"]:
            break
    lines = "".join(f"{json.dumps(response)}\n" for response in responses)
    if options.say:
        with options.say.open("a") as file:
            file.write(lines)
    else:
        print(lines, end="", flush=True)
    if responses and responses[-1]["code"] and not options.catch:
        print(f"RuntimeError: CUDA error: {responses[-1]['text']}", file=sys.stderr)
        return 1
    time.sleep(options.hold)
    while options.until and not options.until.exists():
        time.sleep(0.02)
    return 0


def nvidia_smi(arguments: list[str]) -> int:
    """Be nvidia-smi: the questions that gpusage asks it."""
    parser = argparse.ArgumentParser(prog="nvidia-smi")
    parser.add_argument("command", nargs="?", choices=["memory-limits"])
    parser.add_argument("-i", "--id")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("--query-gpu")
    parser.add_argument("--query-compute-apps")
    parser.add_argument("--format")
    parser.add_argument("--set", action="store_true")
    parser.add_argument("--get", action="store_true")
    parser.add_argument("-n", "--namespace")
    parser.add_argument("--soft-limit")
    parser.add_argument("--hard-limit")
    if arguments[:1] == ["memory-limits"]:
        state = ask("state")
        if not state["code"] and int(state["settings"]["driver"].split(".")[0]) < FIRST_RELEASE_WITH_LIMITS:
            print("ERROR: Option memory-limits is not recognized. Please run 'nvidia-smi -h'.")
            return INVALID_ARGUMENT
    options = parser.parse_args(arguments)
    if options.command:
        words = {"gpu": options.id, "cgroup": options.namespace}
        if options.set:
            response = ask("set_limits", soft=options.soft_limit, hard=options.hard_limit, **words)
        else:
            response = ask("get_limits", **words)
    elif options.query_compute_apps:
        response = ask("apps")
    else:
        fields = (options.query_gpu or "index,name,uuid").split(",")
        response = ask("query", gpu=options.id, fields=fields)
        if options.list_gpus and not response["code"]:
            rows = [line.split(", ") for line in response["lines"]]
            response["lines"] = [f"GPU {index}: {name} (UUID: {uuid})" for index, name, uuid in rows]
    if response["code"]:
        print(response["text"])
        return int(response["code"])
    print("\n".join(response["lines"]))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    name = Path(sys.argv[0]).name
    if name == "nvidia-smi":
        sys.exit(nvidia_smi(sys.argv[1:]))
    if name == "fake-gpu":
        sys.exit(compute(sys.argv[1:]))
    serve(sys.argv[2], json.loads(sys.argv[3]))
