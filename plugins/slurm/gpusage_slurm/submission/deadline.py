"""A time as sbatch's `--deadline` takes it -> how many seconds are left until then.

Source:
    sbatch(1), option ``--deadline``: ``HH:MM[:SS] [AM|PM]``, ``MMDD[YY]`` or ``MM/DD[/YY]`` or ``MM.DD[.YY]``,
    ``MM/DD[/YY]-HH:MM[:SS]``, ``YYYY-MM-DD[THH:MM[:SS]]``, ``now[+count[seconds|minutes|hours|days|weeks]]``; and
    ``uts=SECONDS`` since 1970, as gpusage_request.lua sends it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from gpusage_hooks.errors import RequestError

_RELATIVE = re.compile(r"now(?:\+([0-9]{1,9})([a-z]*))?")
_UNITS_S = {"": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_WORDS = {"midnight": "00:00", "noon": "12:00", "fika": "15:00", "teatime": "16:00"}
_CLOCKS = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p", "%I:%M%p", "%I:%M:%S%p")
_DAY_OF_A_YEAR = re.compile(r"\A(\d\d)[/.]?(\d\d)(?:[/.]?(\d\d))?(?:-(?=\d\d?:)|$)")
_DAY = timedelta(days=1)
_SINCE_1970 = re.compile(r"uts=([0-9]{1,12})")


def seconds_left(text: str, now: datetime) -> int:
    """Return the whole seconds from *now* to the time *text*, both of this host's clock.

    Raises:
        RequestError: It is no time, or over.
    """
    until = time_of(text, now)
    if until is None:
        message = (
            f"Option '--deadline' must be a time as sbatch reads it; got {text!r}. "
            "Write '--deadline=2026-12-24T18:00' or '--deadline=now+8hours'."
        )
        raise RequestError(message)

    left_s = int((until - now).total_seconds())
    if left_s <= 0:
        message = f"Option '--deadline' must be a time to come; got {text!r}, which is over. Slurm refuses such a job."
        raise RequestError(message)
    return left_s


def time_of(text: str, now: datetime) -> datetime | None:
    """Return the time that *text* names, ``None`` where it is none; a time without a date is the next such time."""
    text = _WORDS.get(text.strip().lower(), text.strip())
    relative = _RELATIVE.fullmatch(text.lower())
    since_1970 = _SINCE_1970.fullmatch(text)
    with suppress(OverflowError, ValueError):
        if since_1970:
            return datetime.fromtimestamp(int(since_1970[1]))  # noqa: DTZ006 - as above
        if relative:
            unit_s = _UNITS_S.get(relative[2].removesuffix("s") if relative[2] else "")
            return None if unit_s is None else now + timedelta(seconds=unit_s * int(relative[1] or 0))
        return next(_candidates(text, now), None)
    return None


def _candidates(text: str, now: datetime) -> Iterator[datetime]:
    """Yield *text* read as a day's name, as a time of day, and as a date with or without a time."""
    day = {"today": now, "tomorrow": now + _DAY}.get(text.lower())
    if day:
        yield day.replace(hour=0, minute=0, second=0, microsecond=0)
    for clock in _parsed(text, _CLOCKS):
        today = now.replace(hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=0)
        yield today if today > now else today + _DAY

    # A day without a year is this year's or, if that is over, the next one's.
    for year in (now.year, now.year + 1):
        match = _DAY_OF_A_YEAR.match(text)
        full = f"{match[3] or year % 100:02}-{match[1]}-{match[2]}T{text[match.end() :]}" if match else text
        forms = ["%Y-%m-%d", "%y-%m-%dT", *(f"{day}T{clock}" for day in ("%Y-%m-%d", "%y-%m-%d") for clock in _CLOCKS)]
        for time in _parsed(full, forms):
            if time > now or year > now.year or not match:
                yield time


def _parsed(text: str, forms: Sequence[str]) -> Iterator[datetime]:
    """Yield *text* parsed by each of *forms* that fits."""
    for form in forms:
        with suppress(ValueError):
            yield datetime.strptime(text, form)  # noqa: DTZ007 - Slurm's times are of the host's own clock
