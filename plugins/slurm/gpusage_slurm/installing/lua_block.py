"""Our few lines inside a site's own Lua script: put in once, taken out without a trace.

Invariants:

1. `without_block(with_block(text, body)) == text`, byte for byte; a script of ours alone becomes empty.
2. The block stands before the script's last top-level `return`, because nothing may follow that in Lua.
"""

from __future__ import annotations

import re

_BEGIN = "-- >>> gpusage: `gpusage slurm uninstall` takes this block out\n"
_END = "-- <<< gpusage\n"
_BLOCK = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
_UNENDED = "-- (the script's last line had no end)\n"
_RETURN = re.compile(r"^return\b[^\n]*\n?", re.MULTILINE)


def with_block(text: str, body: str) -> str:
    """Return the script *text* with *body* as our block, in place of an older one."""
    text = without_block(text)
    returns = list(_RETURN.finditer(text))
    closed = returns and not re.search(r"^(end|function|local function)\b", text[returns[-1].end() :], re.MULTILINE)
    place = returns[-1].start() if closed else len(text)
    before, after = text[:place], text[place:]
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


def block_of(text: str) -> str | None:
    """Return our block as it stands in *text*, ``None`` where there is none."""
    match = _BLOCK.search(text)
    return match.group() if match else None
