"""The site's configuration."""

from __future__ import annotations

from gpusage.settings.configuration import CaptureMode, Configuration, DaemonSettings, LearningSettings, SiteMode

__all__ = [
    "CaptureMode",
    "Configuration",
    "DaemonSettings",
    "LearningSettings",
    "SiteMode",
]
