"""The Lua side: the folder of its modules, and the few lines that a site's own scripts need to use them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpusage.configuration import DaemonSettings
from gpusage_slurm.settings import SlurmSettings

FOLDER = Path(__file__).parent
REQUIRED = {
    "gpusage": ("slurm_job_submit", "slurm_job_modify"),
    "gpusage_cli": ("slurm_cli_setup_defaults", "slurm_cli_pre_submit", "slurm_cli_post_submit"),
}
"""What a script must define, also where our module is not to be had: where one is missing, Slurm refuses every job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LuaSettings:
    """What the Lua modules are told.

    Attributes:
        folder: Where `gpusage.lua` and `gpusage_cli.lua` lie.
        socket: Where gpusaged listens.
        limit_ms: Limit on the whole exchange with gpusaged; slurmctld holds its locks meanwhile.
        command: The `gpusage` command, by its full path.
        card_limit_s: Limit on reading a model on the login node.
    """

    folder: Path = FOLDER
    socket: str = DaemonSettings().socket
    limit_ms: float = SlurmSettings().limit_ms
    command: str = "gpusage"
    card_limit_s: float = SlurmSettings().card_limit_s


def job_submit_block(settings: LuaSettings) -> str:
    """Return the lines that make a site's job_submit.lua ask gpusaged after its own slurm_job_submit."""
    table = f"{{ socket = {quoted(settings.socket)}, limit_ms = {settings.limit_ms:g} }}"
    return _block(settings, "gpusage", table)


def cli_filter_block(settings: LuaSettings) -> str:
    """Return the lines that make a site's cli_filter.lua send a model's card after its own filter."""
    table = f"{{ command = {quoted(settings.command)}, limit_s = {settings.card_limit_s:g} }}"
    return _block(settings, "gpusage_cli", table)


def quoted(text: str) -> str:
    """Return *text* as a Lua string; any byte but plain ASCII is written as its number."""
    plain = (chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\{byte:03d}" for byte in text.encode())  # noqa: PLR2004 - printable ASCII
    return f'"{"".join(plain)}"'


def _block(settings: LuaSettings, module: str, table: str) -> str:
    path = quoted(f"{settings.folder}/?.lua")
    log = "slurm.log_info" if module == "gpusage" else "slurm.log_debug"  # a user's terminal stays clean
    stand_ins = "".join(f"  {name} = {name} or nothing\n" for name in REQUIRED[module])
    return (
        f"package.path = {path} .. ';' .. package.path\n"
        f"do\n"
        f"  local found, gpusage = pcall(require, '{module}')\n"
        f"  if found then gpusage.wrap({table}) else {log}('%s', 'gpusage: ' .. tostring(gpusage)) end\n"
        f"  local function nothing() return slurm.SUCCESS end\n"
        f"{stand_ins}"
        f"end\n"
    )
