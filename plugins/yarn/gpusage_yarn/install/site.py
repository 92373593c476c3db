"""The changes of an installation at a site, as a list of edits that can be shown, made, and undone.

Invariants:

1. Planning reads and never writes.
2. Planning an installation where one stands gives edits that change nothing.
3. After an uninstallation each file has the site's own bytes again, also where the site changed it meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from gpusage.boundary.edits import Edit, edit_of, read_text
from gpusage.node.dividing import libexec_folder
from gpusage.node.dividing.programs import PYTHON, plan_node_programs
from gpusage.settings.configuration import Configuration, SiteMode
from gpusage.settings.configuration_file import configuration_path, default_configuration, load_configuration
from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster.configuration import (
    ALLOCATOR,
    CALCULATOR,
    CLASSES,
    DEFAULT_CALCULATOR,
    DOMINANT_CALCULATOR,
    FILES,
    LISTENERS,
    PROCESSORS,
    RESOURCE_TYPES,
    RULES,
    SAMPLER,
    SCHEDULER,
    SERVICE,
    SERVICES,
    SITE,
    SOCKET,
    TYPES,
    conf_folder,
    final_settings,
    read_settings,
)
from gpusage_yarn.install.xml_block import block_settings, with_block, without_block
from gpusage_yarn.settings import YarnSettings
from gpusage_yarn.share_plan import SHARE

Role = Literal["rm", "node", "client"]
_MODE = re.compile(r"""^[ \t]*mode[ \t]*=[ \t]*("[^"\n]*"|'[^'\n]*')""", re.MULTILINE)
_OWN_MODE = re.compile(r"""^[ \t]*(mode[ \t]*=[ \t]*(?:"[^"\n]*"|'[^'\n]*')).*$""", re.MULTILINE)
_CHANGED = "# gpusage yarn install wrote {} below; uninstall puts this back: "
_OUR_MODE = re.compile(_CHANGED.format("(?P<written>.*)") + r"(?P<own>.*)\n(?P<line>.*)(?P<end>\n?)")
_WHOLE = 100
MAX_GPUS = 16
"""As many as a node of the largest common kind has: a container may ask for them all."""
GPU = "yarn.io/gpu"
PLUGINS = "yarn.nodemanager.resource-plugins"
DEVICES = "yarn.nodemanager.resource-plugins.gpu.allowed-gpu-devices"
SHARED_GPUS = "gpusage.node.gpus"
_NODE_RESOURCES = "node-resources.xml"
_OFFER = "yarn.nodemanager.resource-type."
_COUNT = f"{_OFFER}{GPU}"
_CAPACITY = re.compile(r"yarn\.scheduler\.capacity\.(root[\w.-]*?)(?:\.accessible-node-labels\.([^.]+))?\.capacity")
_VCORES = (
    "containers wait for vcores from now on, which YARN's default calculator does not count: set "
    "yarn.nodemanager.resource.cpu-vcores on every node to what it may give out"
)
SCHEDULER_CLASS = "yarn.resourcemanager.scheduler.class"
CAPACITY_SCHEDULER = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"
_RUNTIMES = "yarn.nodemanager.runtime.linux.allowed-runtimes"
FOR_WHOLE_GPUS = "gpusage.share.for-whole-gpus"
ISOLATION = (
    "variables of CUDA show each container its own GPU, and one that asked for none no GPU (gpusage.node.hide-gpus); "
    "nvidia-smi shows all GPUs of the node"
)
_BEGINNINGS: Mapping[Role, tuple[str, ...]] = {
    "rm": ("yarn.scheduler.", "yarn.resourcemanager.", "gpusage.daemon."),
    "node": ("yarn.nodemanager.", "gpusage.node."),
}
"""How our settings of one role begin; all others are of every role."""
_STOCK_ALLOCATOR = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.placement.LocalityAppPlacementAllocator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The files of a site that an installation changes, and the daemons that read them.

    Attributes:
        folder: Hadoop's configuration.
        roles: Whose it is.
        gpus: GPUs that each node with this configuration shares; ``None`` leaves that to the site.
        mps_command: What starts and stops MPS daemons; ``""`` leaves the auxiliary service out.
        libexec: Where a host has its copies of what its NodeManager runs.
    """

    folder: Path
    gpusage_toml: Path = field(default_factory=configuration_path)
    roles: frozenset[Role] = frozenset(("rm", "node"))
    gpus: int | None = None
    mps_command: str = ""
    libexec: Path = field(default_factory=libexec_folder)


def find_site(
    folder: Path | None = None,
    roles: frozenset[Role] = frozenset(("rm", "node")),
    gpus: int | None = None,
    mps_command: str = "",
) -> Site:
    """Return the site whose Hadoop configuration is *folder*, else the folder that the environment names.

    Raises:
        RequestError: There is no yarn-site.xml in it.
    """
    chosen = conf_folder(folder)
    if not (chosen / SITE).is_file():
        message = f"Hadoop's configuration must hold {SITE}; {str(chosen)!r} does not. Name it with --conf-dir."
        raise RequestError(message)
    return Site(folder=chosen.resolve(), roles=roles, gpus=gpus, mps_command=mps_command)


def plan_installation(site: Site, mode: SiteMode | None = None) -> tuple[Edit, ...]:
    """Return the edits of an installation; without *mode*, a new site gets ``observe``, an old site keeps its own."""
    configuration = load_configuration() if site.gpusage_toml.exists() else default_configuration()

    # A host may have several roles, and be installed for one after the other: what the node's was told stays.
    if "node" in roles_here(site) - site.roles:
        block = block_settings(read_text(site.folder / SITE))
        offers = [int(value) // _WHOLE for key, value in block.items() if key.startswith(_OFFER)]
        site = replace(site, gpus=max(offers, default=None), mps_command=block.get("gpusage.node.mps-command", ""))
    site = replace(site, roles=site.roles | roles_here(site))

    own = _own_settings(site.folder / SITE)
    require_usable(own, site)
    edits = [*plan_node_programs(site.libexec)] if "node" in site.roles else []
    for name in FILES:
        path = site.folder / name
        theirs = {TYPES: own.get(TYPES, ""), **_own_settings(path)}  # the types may stand in yarn-site.xml
        planned = _ours(site, name, theirs, configuration)
        ours = {key: value for key, value in planned if theirs.get(key) != value}

        # What the site has declared final, in this file or in one that it includes, Hadoop takes from nobody else.
        for key, file in final_settings(path).items():
            if key in ours:
                message = (
                    f"Property {key!r} in {str(file)!r} must not be final, because gpusage adds to it; it is. "
                    "Add to its value there by hand, or take <final> away."
                )
                raise RequestError(message)

        edits.append(edit_of(path, with_block(read_text(path), ours, str(path))))
    if "rm" in site.roles:
        edits.append(edit_of(site.gpusage_toml, _toml(read_text(site.gpusage_toml), mode, site)))
    return tuple(edits)


def roles_here(site: Site) -> frozenset[Role]:
    """Return the roles whose settings our block in yarn-site.xml holds."""
    block = block_settings(read_text(site.folder / SITE))
    return frozenset(role for role, begins in _BEGINNINGS.items() if any(key.startswith(begins) for key in block))


def installation_notes(site: Site) -> tuple[str, ...]:
    """Return notes for the admin of *site* on an installation, a sentence each."""
    isolation = (f"on nodes that offer shares, {ISOLATION}",) if "node" in site.roles else ()
    if "rm" not in site.roles:
        return isolation
    configuration = load_configuration() if site.gpusage_toml.exists() else default_configuration()
    share = configuration.of_manager(YarnSettings).share_resource
    theirs = _own_settings(site.folder / SCHEDULER)
    vcores = () if theirs.get(CALCULATOR, DEFAULT_CALCULATOR).strip() != DEFAULT_CALCULATOR else (_VCORES,)
    return (*queues_without_shares(theirs, share), *vcores, *isolation)


def require_usable(settings: Mapping[str, str], site: Site) -> None:
    """Refuse a site whose own *settings* in yarn-site.xml leave applications without what a share promises.

    Raises:
        RequestError: It has another scheduler, containers in Docker, or GPUs that nobody can have whole.
    """
    scheduler = settings.get(SCHEDULER_CLASS, "").strip()
    runtimes = {word.strip() for word in settings.get(_RUNTIMES, "").split(",")} - {"", "default", "javasandbox"}
    nobody_whole = settings.get(FOR_WHOLE_GPUS, "").strip().lower() == "false" and not are_gpus_divided(settings)
    message = ""
    if scheduler not in ("", CAPACITY_SCHEDULER):
        message = (
            f"Scheduler must be the CapacityScheduler, which alone asks gpusage; {SCHEDULER_CLASS} is {scheduler}. "
            "Change to the CapacityScheduler, or leave gpusage out."
        )
    elif "node" in site.roles and runtimes:
        allowed = ", ".join(sorted(runtimes))
        message = (
            "Containers with a share must run outside Docker and runc, where they reach neither GPU nor MPS; "
            f"{_RUNTIMES} allows {allowed}. Share GPUs of nodes that do not allow it."
        )
    elif "node" in site.roles and site.gpus and nobody_whole:
        message = (
            "Nodes that offer shares alone must give whole GPUs as well, which the next try of a job may need; "
            f"{FOR_WHOLE_GPUS} is false. Take it out, or divide the GPUs: {SHARED_GPUS} and {DEVICES}."
        )
    if message:
        raise RequestError(message)


def plan_uninstallation(site: Site) -> tuple[Edit, ...]:
    """Return the edits that take the site's roles out; a gpusage.toml that is its own has its own mode again."""
    edits, staying = [], roles_here(site) - site.roles
    going = tuple(begin for role in _BEGINNINGS.keys() - staying for begin in _BEGINNINGS[role])
    for path in (site.folder / name for name in FILES):
        block = block_settings(read_text(path)) if staying else {}
        ours = {key: value for key, value in block.items() if not key.startswith(going)}
        edits.append(edit_of(path, with_block(read_text(path), ours, str(path))))

    own = _own_toml(read_text(site.gpusage_toml))
    generated = own is not None and _MODE.sub("", own) == _MODE.sub("", _toml(None, None, site))
    if "rm" in site.roles:
        edits.append(edit_of(site.gpusage_toml, None if generated else own))
    return tuple(edits)


def with_item(present: str, item: str, *, default: str = "", first: bool = False) -> str:
    """Return the comma-separated list *present* with *item* in it; an empty list is *default* first."""
    # An empty list stands for YARN's default, which ours must not replace.
    items = [word.strip() for word in (present or default).split(",") if word.strip()]
    if item in items:
        return ",".join(items)
    return ",".join([item, *items] if first else [*items, item])


def _ours(site: Site, name: str, theirs: Mapping[str, str], configuration: Configuration) -> Iterator[tuple[str, str]]:
    """Yield our settings of the file *name*, with the site's own settings there."""
    share = configuration.of_manager(YarnSettings).share_resource
    if name == RESOURCE_TYPES:
        yield TYPES, with_item(theirs.get(TYPES, ""), share)
        yield f"{TYPES}.{share}.maximum-allocation", str(MAX_GPUS * _WHOLE)
    elif name == SCHEDULER and "rm" in site.roles:
        # A calculator of the site's own stays; only YARN's two are replaced.
        if theirs.get(CALCULATOR, "").strip() in ("", DEFAULT_CALCULATOR, DOMINANT_CALCULATOR):
            yield CALCULATOR, CLASSES[CALCULATOR]
    elif name == SITE:
        if site.roles & {"rm", "node"}:
            yield "gpusage.switch-file", configuration.kill_switch
            if share != SHARE:
                yield "gpusage.share.resource", share
        if "rm" in site.roles:
            # Ours comes first and decides nothing about queues: it returns no placement, so the next rule is asked.
            yield RULES, with_item(theirs.get(RULES, ""), CLASSES[RULES], default="user-group", first=True)
            yield PROCESSORS, with_item(theirs.get(PROCESSORS, ""), CLASSES[PROCESSORS])

            # A site's own allocator stays; Hadoop before 3.4 has no such key, and ignores it.
            if theirs.get(ALLOCATOR, "").strip() in ("", _STOCK_ALLOCATOR):
                yield ALLOCATOR, CLASSES[ALLOCATOR]
            yield SOCKET, configuration.daemon.socket
        if "node" in site.roles:
            yield from _of_nodes(site, theirs, share)
            if site.mps_command and configuration.sharing.across_users:
                yield "gpusage.node.across-users", "true"


def _of_nodes(site: Site, theirs: Mapping[str, str], share: str) -> Iterator[tuple[str, str]]:
    yield LISTENERS, with_item(theirs.get(LISTENERS, ""), CLASSES[LISTENERS])
    if SAMPLER not in theirs and " " not in str(site.libexec):  # the node divides the command at blanks
        yield SAMPLER, f"{site.libexec / PYTHON} gpusage_yarn.usage.node"
    if site.gpus is not None:
        require_single_offer(site.folder, theirs, site.gpus)
        yield f"{_OFFER}{share}", str(site.gpus * _WHOLE)
    if site.mps_command:
        yield SERVICES, with_item(theirs.get(SERVICES, ""), SERVICE)
        yield f"{SERVICES}.{SERVICE}.class", CLASSES[f"{SERVICES}.{SERVICE}.class"]
        yield "gpusage.node.mps-command", site.mps_command


def _own_settings(path: Path) -> dict[str, str]:
    """Return the site's own settings in a file and in the files that it includes, our blocks left out."""
    return read_settings(path, lambda each: without_block(read_text(each)))


def _toml(present: str | None, mode: SiteMode | None, site: Site) -> str:
    if present is None:
        return (
            "# Settings of gpusage; `gpusage yarn doctor` prints every key with its value and where it came from.\n"
            "# A change holds at once; nothing has to be restarted.\n"
            f'mode = "{mode or "observe"}"  # observe: record only; advise: tell the user; enforce: rewrite\n\n'
            '[daemon]\nallowed_users = ["root", "yarn"]  # who may ask: the ResourceManager\'s user\n\n'
            f'[yarn]\nconf_dir = "{site.folder}"\n'
        )
    if mode is None:
        return present

    own, line = _own_toml(present) or "", f'mode = "{mode}"'
    match = _OWN_MODE.search(own)
    if match is None:
        return f"{_CHANGED.format(line)}\n{line}\n{own}"
    if match[1] == line:
        return own
    return f"{own[: match.start()]}{_CHANGED.format(line)}{match[0]}\n{line}{own[match.end() :]}"


def _own_toml(present: str | None) -> str | None:
    """Return gpusage.toml as the site wrote it; a mode that it changed after us is its own."""

    def restored(ours: re.Match[str]) -> str:
        if ours["line"] != ours["written"]:
            return f"{ours['line']}{ours['end']}"
        return f"{ours['own']}{ours['end']}" if ours["own"] else ""

    return present if present is None else _OUR_MODE.sub(restored, present, count=1)


def require_single_offer(folder: Path, settings: Mapping[str, str], gpus: int) -> None:
    """Refuse to share *gpus* GPUs of a node that gives the same ones out whole, by YARN's own ``yarn.io/gpu``.

    Args:
        folder: Hadoop's configuration.
        settings: The site's own in yarn-site.xml.
        gpus: How many.

    Raises:
        RequestError: It does, and the site has not said which GPUs are for whom.
    """
    plugins = (word.strip() for word in settings.get(PLUGINS, "").split(","))
    counts = {SITE: settings.get(_COUNT), _NODE_RESOURCES: read_settings(folder / _NODE_RESOURCES).get(_COUNT)}
    present = [f"{PLUGINS} in {SITE}"] if GPU in plugins else []
    present += [f"{_COUNT} in {file}" for file, count in counts.items() if (count or "").strip() not in ("", "0")]
    if gpus and present and not are_gpus_divided(settings):
        message = (
            f"Node's GPUs must be offered once; {present[0]} offers them whole as {GPU}, and --gpus {gpus} would offer "
            f"them again as shares. Take {GPU} out there: who asks for {GPU} gets it on other nodes, or whole GPUs "
            f"here where none has it. Or divide them: those to share in {SHARED_GPUS}, the others in {DEVICES}."
        )
        raise RequestError(message)


def are_gpus_divided(settings: Mapping[str, str]) -> bool:
    """Return whether a node's *settings* say which of its GPUs are shared, and which YARN gives out whole."""
    return bool(settings.get(SHARED_GPUS, "").strip()) and settings.get(DEVICES, "").strip() not in ("", "auto")


def queues_without_shares(settings: Mapping[str, str], share: str) -> Iterator[str]:
    """Yield a sentence on each queue whose absolute resources name GPUs, or are of a label, and have no shares.

    Nodes without a label have no GPUs that are shared, so a queue needs shares there only where it has GPUs.
    """
    for name, value in settings.items():
        match, text = _CAPACITY.fullmatch(name), value.replace(" ", "")
        if match and text.startswith("[") and f"{share}=" not in text and (match[2] or f"{GPU}=" in text):
            yield (
                f"Queue {match[1]} must have shares among its absolute resources, or applications in it wait for ever; "
                f"{name} has none. Add {share}=100 for each GPU to it and to its maximum-capacity, then run: "
                "yarn rmadmin -refreshQueues"
            )
