"""Our block of lines in a site's job_submit.lua and cli_filter.lua: inserted once, removed without a trace.

Invariants:

1. `without_block(with_block(text, body)) == text`, byte for byte; a script that holds only our block becomes empty.
2. The block stands before the script's last top-level `return`, because nothing may follow that in Lua.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpusage.settings.configuration import CaptureMode
from gpusage_hooks.comment import MODEL_NAMES

LUA_FOLDER = Path(__file__).parents[1] / "lua"
MODULES = ("gpusage.lua", "gpusage_request.lua", "gpusage_cli.lua")
REQUIRED = {
    "gpusage": ("slurm_job_submit", "slurm_job_modify"),
    "gpusage_cli": ("slurm_cli_setup_defaults", "slurm_cli_pre_submit", "slurm_cli_post_submit"),
}
"""What a script must define, also where our module is not to be had: where one is missing, Slurm refuses every job."""

_BEGIN = "-- >>> gpusage: `gpusage slurm uninstall` takes this block out\n"
_END = "-- <<< gpusage\n"
_BLOCK = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
_UNENDED = "-- (the script's last line had no end)\n"
_RETURN = re.compile(r"^return\b[^\n]*\n?", re.MULTILINE)
_SOCKET = re.compile(r'socket = "([^"]*)"')
_BYTE = re.compile(rb"\\(\d{3})")


def job_submit_block(folder: Path, socket: str, limit_ms: float) -> str:
    """Return the lines that make a site's job_submit.lua ask gpusaged after its own slurm_job_submit.

    Args:
        folder: Where the host's copies of Lua modules lie.
        socket: Where gpusaged listens.
        limit_ms: Limit on the whole exchange with gpusaged; slurmctld holds its locks meanwhile.
    """
    return _render_block(folder, "gpusage", f"{{ socket = {quoted(socket)}, limit_ms = {limit_ms:g} }}")


def cli_filter_block(
    folder: Path, command: str, limit_s: float, capture: CaptureMode, model_names: Sequence[str] = MODEL_NAMES
) -> str:
    """Return the lines that make a site's cli_filter.lua send a model's card after its own filter.

    Args:
        folder: Where the host's copies of Lua modules lie.
        command: The `gpusage` command, by its full path.
        limit_s: Limit on reading a model on the login node.
        capture: Whose own runs show their models, as in `LearningSettings`.
        model_names: How models are named here, those of plugins among them.
    """
    names = ", ".join(map(quoted, model_names))
    settings = f"command = {quoted(command)}, limit_s = {limit_s:g}, capture = {quoted(capture)}"
    return _render_block(folder, "gpusage_cli", f"{{ {settings}, names = {{ {names} }} }}")


def quoted(text: str) -> str:
    """Return *text* as a Lua string; any byte but printable ASCII is written as its number."""
    plain = (chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\{byte:03d}" for byte in text.encode())
    return f'"{"".join(plain)}"'


def socket_in(job_submit: str) -> str | None:
    """Return the socket that our block in the script *job_submit* names, ``None`` where there is none."""
    match = _SOCKET.search(find_block(job_submit) or "")
    if match is None:
        return None
    return _BYTE.sub(lambda number: bytes([int(number[1])]), match[1].encode()).decode("utf-8", "replace")


def _render_block(folder: Path, module: str, table: str) -> str:
    # Where our module cannot be loaded, the functions that Slurm demands must be there all the same.
    path = quoted(f"{folder}/?.lua")
    log = "slurm.log_info" if module == "gpusage" else "slurm.log_debug"  # a user's terminal stays clean
    stand_ins = "".join(f"  {name} = {name} or nothing\n" for name in REQUIRED[module])
    return (
        f"package.path = {path} .. ';' .. package.path\n"
        f"do\n"
        f"  local works, trouble = pcall(function() require('{module}').wrap({table}) end)\n"
        f"  if not works then {log}('%s', 'gpusage: ' .. tostring(trouble)) end\n"
        f"  local function nothing() return slurm.SUCCESS end\n"
        f"{stand_ins}"
        f"end\n"
    )


def with_block(text: str, body: str) -> str:
    """Return the script *text* with *body* as our block, in place of an older block."""
    text = without_block(text)

    # A `return` in column 0 that is followed by a top-level `end` or `function` belongs to a function.
    returns = list(_RETURN.finditer(text))
    closed = returns and not re.search(r"^(end|function|local function)\b", text[returns[-1].end() :], re.MULTILINE)
    place = returns[-1].start() if closed else len(text)
    before, after = text[:place], text[place:]

    # A mark in the block tells that the line end before it is ours, too.
    if before and not before.endswith("\n"):
        return f"{before}\n{_BEGIN}{_UNENDED}{body.rstrip()}\n{_END}{after}"
    return f"{before}{_BEGIN}{body.rstrip()}\n{_END}{after}"


def without_block(text: str) -> str:
    """Return the script *text* as the site wrote it."""
    match = _BLOCK.search(text)
    if not match:
        return text
    before, after = text[: match.start()], text[match.end() :]
    return (before.removesuffix("\n") if match.group().startswith(_BEGIN + _UNENDED) else before) + after


def find_block(text: str) -> str | None:
    """Return our block as it stands in *text*, ``None`` where there is none."""
    match = _BLOCK.search(text)
    return match.group() if match else None
