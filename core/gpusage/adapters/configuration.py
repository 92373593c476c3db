"""The site's configuration."""

from __future__ import annotations

from gpusage.settings.configuration import Configuration, DaemonSettings, SiteMode

__all__ = [
    "Configuration",
    "DaemonSettings",
    "SiteMode",
]
