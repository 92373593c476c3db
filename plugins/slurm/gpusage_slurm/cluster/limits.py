"""Limits on GPUs that do not count shares, as slurmdbd has them: of QOS, accounts and users.

Tried on 22.05, 24.11 and 26.05: a share counts as gres/mps and as no gres/gpu. So under ``MaxTRESPU=gres/gpu=2`` a user
gets two GPUs and any number of shares, and under a spent ``GrpTRESMins=gres/gpu`` shares still run. A limit on gres/mps
beside it adds to it. Only a limit on both together holds:

**A limit on GPUs holds for shares if the same QOS or association limits `billing` in the same way to no more than what
so many GPUs are billed, and every partition with shares bills them as their part of a GPU.**

`scontrol show assoc_mgr` shows a limit of a QOS on each user or account only for those who have used it, and no QOS
that another may preempt; so `sacctmgr` is asked.
"""

from __future__ import annotations

import pwd
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import OF_USER, GpuPool
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.billing import (
    SHARES,
    bills_cpus,
    bills_others,
    gpu_weights,
    is_gpu_resource,
    shared_partitions,
    wrong_weights,
)
from gpusage_slurm.scontrol import Line

PER_JOB = ("MaxTRES", "MaxTRESPerNode")
"""Limits of one job or one node: a job with one GPU meets them, unless they are 0."""
_EACH = (*PER_JOB, "MaxTRESMins", "GrpTRES", "GrpTRESMins", "GrpTRESRunMins")
_QOS_ONLY = ("MaxTRESPU", "MaxTRESPA", "MaxTRESRunMinsPU", "MaxTRESRunMinsPA")
_QOS_COLUMNS = ("Name", "Preempt", "PreemptMode", "MinTRES", *_EACH, *_QOS_ONLY)
_ASSOCIATION_COLUMNS = ("Account", "User", "ParentName", "DefaultQOS", "QOS", *_EACH)

_READ_AGAIN_S = 60.0
"""slurmdbd takes 0.27 s for 2,500 associations (tried on 22.05), so it is asked less often than slurmctld."""
_EXAMPLE_WEIGHT = 100.0
"""Of a GPU, where the site bills none."""
UNKNOWN = "slurmdbd does not tell which limits on GPUs hold, and a share might lift one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What slurmdbd has, a line for each QOS and for each association, by the names of its columns."""

    qos: tuple[Line, ...] = ()
    associations: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit on GPUs that shares do not count against.

    Attributes:
        scope: Whose jobs keep whole GPUs, as in `GpuRequest.scopes`.
        reason: For them, one clause.
        remedies: What to set so that it holds for shares too; none where it allows no GPU at all, or stands elsewhere.
    """

    scope: str
    reason: str
    remedies: tuple[str, ...] = ()


def limits_hold(settings: Mapping[str, str]) -> bool:
    """Return whether slurmctld, by its *settings*, keeps limits of QOS and associations."""
    enforced = settings.get("accountingstorageenforce", "").lower().split(",")
    return _has_books(settings) and not {"limits", "safe", "all"}.isdisjoint(enforced)


def _has_books(settings: Mapping[str, str]) -> bool:
    return settings.get("accountingstoragetype", "").endswith("slurmdbd")


def read_books(settings: Mapping[str, str]) -> Books:
    """Return what slurmdbd has of this cluster; nothing where nothing of it holds here.

    Args:
        settings: slurmctld's, by their names in lower case.

    Raises:
        RequestError: slurmdbd does not answer, or hides the associations of others.
    """
    if not limits_hold(settings) and not (_has_books(settings) and settings.get("preempttype") == "preempt/qos"):
        return Books()
    cluster = settings.get("clustername", "")
    books = Books(
        qos=_rows("qos", _QOS_COLUMNS), associations=_rows("assoc", _ASSOCIATION_COLUMNS, f"cluster={cluster}")
    )

    # Every cluster has the association of the account root. Who does not see it sees only a part of them.
    if not any(row["Account"] == "root" and not row["User"] for row in books.associations):
        rule = "show this user all associations; got only some, as PrivateData in slurmdbd.conf has it"
        message = f"slurmdbd must {rule}. Run gpusaged as SlurmUser, or give its user AdminLevel=Operator."
        raise RequestError(message)
    return books


def _rows(kind: str, columns: Sequence[str], *conditions: str) -> tuple[Line, ...]:
    command = ("sacctmgr", "--noheader", "--parsable2", "show", kind, *conditions, f"format={','.join(columns)}")
    lines = scontrol.run(*command).splitlines()
    return tuple(dict(zip(columns, line.split("|"), strict=False)) for line in lines if line.count("|"))


class BookKeeper:
    """Reads the books once a minute, and keeps what it read last while slurmdbd is away."""

    def __init__(self) -> None:
        self._books: Books | None = None
        self._read_at_s = 0.0

    def read(self, settings: Mapping[str, str]) -> Books | None:
        """Return what `read_books` returned last, ``None`` before it ever did."""
        if self._books is None or time.monotonic() - self._read_at_s > _READ_AGAIN_S:
            self._read_at_s = time.monotonic()
            with suppress(RequestError):
                self._books = read_books(settings)
        return self._books


def unseen_limits(
    books: Books, settings: Mapping[str, str], partitions: Sequence[Line], pools: Sequence[GpuPool]
) -> Iterator[Limit]:
    """Yield the limits on GPUs for whose jobs no share is safe, those of an account for each account below it.

    Args:
        books: Of slurmdbd.
        settings: slurmctld's, by their names in lower case.
        partitions: As slurmctld describes them.
        pools: The cluster's.
    """
    if not limits_hold(settings):
        return
    site = _billing(settings, partitions, pools)

    of_qos: dict[str, Limit] = {}
    for row in books.qos:
        name = row["Name"]
        limit = site.limit(row, (*_EACH, *_QOS_ONLY), f"qos={name}", f"quality of service {name}", f"qos {name}")
        if limit:
            of_qos[name] = limit

    of_accounts: dict[str, Limit] = {}
    of_users: list[tuple[str, str, Limit]] = []
    for row in books.associations:
        account, user = row["Account"], row["User"]
        place = f"user {user} where account={account}" if user else f"account {account}"
        limit = site.limit(row, _EACH, f"account={account}", place.replace("where account=", "in account "), place)

        # A job that names no QOS gets the only one of its association, and job_submit does not see which.
        if not limit and not row.get("DefaultQOS") and row.get("QOS") in of_qos:
            limit = replace(of_qos[row["QOS"]], scope=f"account={account}", remedies=())
        if limit and user:
            of_users.append((account, user, limit))
        elif limit:
            of_accounts[account] = limit

    _add_accounts_below(of_accounts, books.associations)
    yield from of_qos.values()
    yield from of_accounts.values()

    # slurmctld, on this host, takes no job of a user whom it does not know: such a user may have left.
    for account, user, limit in of_users:
        uid = None if account in of_accounts else _uid(user)
        if uid is not None:
            yield replace(limit, scope=f"{limit.scope}{OF_USER}{uid}")


def _add_accounts_below(of_accounts: dict[str, Limit], associations: Iterable[Line]) -> None:
    """Give each account without a limit that of the nearest account above it."""
    parents = {row["Account"]: row.get("ParentName", "") for row in associations if not row["User"]}
    for account in parents:
        line = [account]
        while line[-1] not in of_accounts and parents.get(line[-1], "") not in ("", *line):
            line.append(parents[line[-1]])
        if line[-1] in of_accounts and len(line) > 1:
            of_accounts[account] = replace(of_accounts[line[-1]], scope=f"account={account}", remedies=())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Billing:
    """How partitions with shares bill.

    Attributes:
        counts_shares: Whether all of them bill a share as its part of a GPU.
        gpu_weight: The lowest weight of a GPU there: with it a limit on billing never allows more GPUs.
        remedies: What is to be set before a limit on billing is of use.
        bills_cpus: Names of the partitions, of all, where a limit on billing would limit jobs without a GPU too.
    """

    counts_shares: bool
    gpu_weight: float
    remedies: tuple[str, ...]
    bills_cpus: tuple[str, ...]

    def limit(self, row: Line, keys: Sequence[str], scope: str, whose: str, place: str) -> Limit | None:
        """Return the first limit among the *keys* of *row* that does not hold for shares.

        Args:
            row: Of the books.
            keys: Its columns to look at.
            scope: As in `Limit`.
            whose: It is, for people.
            place: The same for `sacctmgr modify`.
        """
        for key in keys:
            words = [word.partition("=") for word in row.get(key, "").split(",")]
            counts = {name: int(count) for name, _, count in words if count.isdecimal()}
            for name, count in counts.items():
                billing = count * self.gpu_weight
                meets_limit = key in PER_JOB and count > 0
                is_counted = self.counts_shares and counts.get("billing", billing + 1) <= billing
                if not is_gpu_resource(name) or meets_limit or is_counted:
                    continue
                command = f"sacctmgr modify {place} set {key}=billing={billing:g}"
                if self.bills_cpus:
                    names = ", ".join(self.bills_cpus)
                    command = (
                        f"{key}=billing={billing:g} in a QOS for GPUs alone: it also limits CPUs in partition {names}"
                    )
                return Limit(
                    scope=scope,
                    reason=f"{whose} has a limit that does not count shares ({key}={name}={count})",
                    remedies=(self.remedies or (command,)) if count else (),
                )
        return None


def _billing(settings: Mapping[str, str], partitions: Sequence[Line], pools: Sequence[GpuPool]) -> _Billing:
    """Return how those of *partitions* bill that have shares."""
    is_tracked = SHARES in settings.get("accountingstoragetres", "").lower().split(",")
    to_set = [f"TRESBillingWeights={each}" for each in wrong_weights(partitions, pools, _EXAMPLE_WEIGHT)]
    counts_shares = is_tracked and not to_set
    billed = [partition for partition, _ in shared_partitions(partitions, pools)]
    weights = {weight for partition in billed for weight in gpu_weights(partition)} or {_EXAMPLE_WEIGHT}

    # Else the limit would hold for CPUs too, or allow less GPUs than before.
    adds_up = "max_tres" not in settings.get("priorityflags", "").lower()
    if adds_up and any(map(bills_others, billed)):
        to_set.append("PriorityFlags=MAX_TRES, or weights of GRES alone: billing counts CPUs or memory too")
    if len(weights) > 1:
        to_set.append("the same weight of a GPU in all partitions and for all types: a limit on billing is one number")
    return _Billing(
        counts_shares=counts_shares,
        gpu_weight=min(weights),
        remedies=tuple(to_set),
        bills_cpus=tuple(each["PartitionName"] for each in partitions if bills_cpus(each)),
    )


_UIDS: dict[str, tuple[int | None, float]] = {}
"""Of each user the number, and when it was looked up; after a boot the site's directory may come late."""


def _uid(user: str) -> int | None:
    """Return the number of *user*, by which job_submit knows who submits; ``None`` for nobody of this host."""
    uid, at_s = _UIDS.get(user, (None, 0.0))
    now_s = time.monotonic()
    if user not in _UIDS or (uid is None and now_s - at_s > _READ_AGAIN_S):
        with suppress(KeyError):
            uid = pwd.getpwnam(user).pw_uid
        _UIDS[user] = (uid, now_s)
    return uid
