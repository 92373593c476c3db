"""Keeps a program's files apart: an overlay in memory over its folders, all else read-only, and no network.

Run as ``python -I scratch_files.py OPTIONS PROGRAM...``, without any other module of ours; it makes the namespaces and
becomes the program. Only the system's own calls are used, no root and no helper with more rights.

Invariants:

1. The program begins only after every step here has worked, and without any capability of the namespace.
2. Folders of the user that hold other mounts are read-only, not overlaid.
3. With the program ends every process that it has started: it is the first of its own process namespace.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

NO_SCRATCH_STATUS = 97
"""Exit status on a kernel that refuses namespaces or overlays to users."""
SCRATCH_BYTES = 1 << 30
FILE_BYTES = 1 << 30
"""Largest file of the program."""
_NEW_USER, _NEW_MOUNTS, _NEW_PROCESSES, _NEW_NETWORK = 0x10000000, 0x00020000, 0x20000000, 0x40000000
_NEW_IPC = 0x08000000
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the program gets one of its own
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14
_MOUNT_SETATTR, _AT_RECURSIVE, _READ_ONLY = 442, 0x8000, 1
"""The number of the system call, which is the same on all architectures since 5.12."""
_DROP_FROM_BOUNDING_SET, _NO_NEW_PRIVILEGES = 24, 38
_LAST_CAPABILITY = 63
_SET_FLAGS, _UP = 0x8914, 1
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Make the namespaces that the options name, limit the process, and become the program."""
    options, program = json.loads(sys.argv[1]), sys.argv[2:]
    folder = Path.cwd()
    if options["is_apart"]:
        try:
            _enter_namespaces(has_network=options["has_network"])
            _overlay([Path(each) for each in options["folders"]])
        except OSError as error:
            sys.stderr.write(f"{error.strerror or error}\n")
            sys.exit(NO_SCRATCH_STATUS)
        os.chdir(folder)  # into the overlay
        # Root, too, has no capability in the namespace then, and could otherwise remove the overlays.
        for capability in range(_LAST_CAPABILITY + 1):
            _libc.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)
        _check(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _become_first_process()

    os.nice(19)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    cpu_s = int(options["cpu_limit_s"])
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    os.environ.update(options["variables"])
    os.execvp(program[0], program)  # noqa: S606 - no shell, on purpose: it is the user's own command


def overlaid(folders: Iterable[Path], mounts: Sequence[Path]) -> list[Path]:
    """Return the *folders* for an overlay: none with one of all *mounts* inside, and none inside another of them."""
    # An overlay shows its lower file system alone, without the mounts inside.
    free = [each for each in folders if not any(each in mount.parents for mount in mounts)]
    return [each for each in dict.fromkeys(free) if not any(parent in free for parent in each.parents)]


def _enter_namespaces(*, has_network: bool) -> None:
    user, group = os.getuid(), os.getgid()
    _check(_libc.unshare(_NEW_USER | _NEW_MOUNTS | _NEW_PROCESSES | _NEW_IPC | (0 if has_network else _NEW_NETWORK)))
    # Without root, a group can be mapped only after setgroups is given up (user_namespaces(7)).
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")

    if not has_network:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:  # programs listen on their own host
            fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))


def _overlay(folders: Iterable[Path]) -> None:
    """Make all mounts read-only, and lay an overlay in memory on each of *folders*."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    mounts = [Path(line.split(" ")[4].encode().decode("unicode_escape")) for line in lines]
    targets = overlaid([each.resolve() for each in folders if each.is_dir()], mounts)
    # Private first, so that no mount here reaches the host's own namespace.
    _mount("none", "/", "", _PRIVATE | _RECURSIVE, "")
    attributes = struct.pack("4Q", _READ_ONLY, 0, 0, 0)
    _check(_libc.syscall(_MOUNT_SETATTR, -1, b"/", _AT_RECURSIVE, attributes, len(attributes)))
    # On a folder that each host has: one of our own would stay behind. The second one there hides it at the end.
    _mount("none", _SHARED_MEMORY, "tmpfs", 0, f"size={SCRATCH_BYTES},mode=700")
    work = os.open(_SHARED_MEMORY, os.O_PATH)

    for number, target in enumerate(targets):
        upper = f"/proc/self/fd/{work}/{number}"
        for name in ("", "upper", "work"):
            Path(upper, name).mkdir(mode=0o700)
        lower = os.open(target, os.O_PATH)  # its name may have a comma or a colon
        words = f"lowerdir=/proc/self/fd/{lower},upperdir={upper}/upper,workdir={upper}/work,userxattr"
        _mount("overlay", str(target), "overlay", 0, words)
        os.close(lower)

    _mount("none", _SHARED_MEMORY, "tmpfs", 0, f"size={SCRATCH_BYTES}")
    os.close(work)


def _become_first_process() -> None:
    """Return in the first process of the new namespace; the outer process waits for it, and ends with its status."""
    # A process namespace begins with the next child. The caller knows only this process, so it passes SIGTERM on.
    first = os.fork()
    if not first:
        return
    signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGTERM))
    _, status = os.waitpid(first, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _mount(source: str, target: str, kind: str, flags: int, words: str) -> None:
    path = os.fsencode(target)
    _check(_libc.mount(source.encode(), path, kind.encode(), ctypes.c_ulong(flags), words.encode()))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
