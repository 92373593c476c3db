"""A model's card, read in a child process that has the job user's rights and nothing else.

Invariants:

1. The child opens nothing before it is its user: uid, gid and supplementary groups are dropped for good, then it
   changes to the job's folder, then it executes Python anew. So whatever a path leads to, now or a moment later, is
   opened with the user's rights: links, /proc, other users' files.
2. It inherits no file, no environment and no terminal of ours. It has limits on time, memory, files and processor time,
   and where the kernel allows it no network.
3. Only a card or an encoded sentence comes back, of bounded length; nothing of a file that is no model.
4. Only root can become another user. Anyone else reads for its own jobs only.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import resource
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from gpusage.graphs.card.error import ERROR_MARK, encode_error

READ_LIMIT_S = 30.0
CARD_LIMIT_BYTES = 16 * 1024

_ANSWER = re.compile(rf"{ERROR_MARK}?[A-Za-z0-9+/=]{{1,{CARD_LIMIT_BYTES}}}")
_LIMITS = {
    resource.RLIMIT_AS: 4 * 1024**3,
    resource.RLIMIT_CPU: int(READ_LIMIT_S),
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 1024**2,
    resource.RLIMIT_NOFILE: 64,
}
_LOWEST_PRIORITY = 19
_REAP_S = 1.0
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of sched.h
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS of prctl.h
_NO_ANSWER = "the model was read later, without success: that took longer than {:g} s, or ended without a message"
_NO_PROCESS = "the model was not read later, because no process could be started as its user: {}"
_UNKNOWN_USER = "the model was not read later, because this host knows no user with uid {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserIdentity:
    """Whose rights a child has."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def may_read_for(uid: int) -> bool:
    """Return whether this process may read models of the user *uid*: root may, and everyone their own."""
    return os.geteuid() in (0, uid)


def read_card(comment: str, uid: int, folder: str, limit_s: float = READ_LIMIT_S) -> str:
    """Return the card of the model that *comment* names, or why there is none, as `gpusage job-card` prints it.

    Args:
        comment: A job's.
        uid: The job's user; see `may_read_for`.
        folder: Where a relative path begins.
        limit_s: On everything.
    """
    identity = _user_identity(uid)
    if identity is None:
        return encode_error(_UNKNOWN_USER.format(uid))
    try:
        text = _read_output(_start_reader(comment, identity, folder), limit_s)
    except (OSError, subprocess.SubprocessError) as error:
        return encode_error(_NO_PROCESS.format(error))
    return text if _ANSWER.fullmatch(text) else encode_error(_NO_ANSWER.format(limit_s))


def _user_identity(uid: int) -> UserIdentity | None:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return None
    groups = tuple(os.getgrouplist(user.pw_name, user.pw_gid))
    return UserIdentity(name=user.pw_name, uid=uid, gid=user.pw_gid, groups=groups, home=user.pw_dir)


def _start_reader(comment: str, identity: UserIdentity, folder: str) -> subprocess.Popen[bytes]:
    # -I: neither the folder nor the user's own packages are where Python looks for modules.
    command = [sys.executable, "-I", "-m", "gpusage.cli", "job-card", "--", comment]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(identity),
        start_new_session=True,
        preexec_fn=lambda: _become_user(identity, folder),  # noqa: PLW1509 - this process has one thread
    )


def _environment(identity: UserIdentity) -> dict[str, str]:
    return {
        "PATH": os.defpath,
        "HOME": identity.home,
        "USER": identity.name,
        "LC_ALL": "C.UTF-8",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def _become_user(identity: UserIdentity, folder: str) -> None:
    """Become the user for good, with limits, in the job's folder; runs in the child, and what fails ends it."""
    library = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        library.unshare(_NEW_NETWORK)  # a container may forbid it; then the user's own network stays
        os.setgroups(identity.groups)
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
    if os.getresuid() != (identity.uid,) * 3:
        raise PermissionError
    library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    for limit, most in _LIMITS.items():
        resource.setrlimit(limit, (most, most))
    os.umask(0o077)
    os.nice(_LOWEST_PRIORITY)
    _change_folder_or_root(folder)


def _change_folder_or_root(folder: str) -> None:
    """Go to *folder* with the user's rights, to one that is empty for everybody where the user may not."""
    try:
        os.chdir(folder)
    except OSError:
        os.chdir("/")


def _read_output(child: subprocess.Popen[bytes], limit_s: float) -> str:
    """Return what *child* prints, within *limit_s* and a limit on its length; it is gone afterwards, if it can be."""
    deadline_s, content = time.monotonic() + limit_s, b""
    stdout = child.stdout
    if stdout is None:
        return ""
    with stdout, selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while len(content) <= CARD_LIMIT_BYTES and selector.select(max(0.0, deadline_s - time.monotonic())):
            chunk = os.read(stdout.fileno(), CARD_LIMIT_BYTES)
            if not chunk:
                break
            content += chunk
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # one that waits for a dead file server cannot be ended
        child.wait(_REAP_S)
    return content.decode("ascii", "replace").strip()


def reading_rights() -> str:
    """Return with whose rights this process reads, as one clause."""
    return "for every user" if os.geteuid() == 0 else f"for uid {os.geteuid()} alone, because it does not run as root"
