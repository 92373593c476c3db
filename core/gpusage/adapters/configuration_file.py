"""The file of the site's configuration."""

from __future__ import annotations

from gpusage.settings.configuration_file import (
    configuration_path,
    default_configuration,
    load_configuration,
    read_configuration,
)

__all__ = [
    "configuration_path",
    "default_configuration",
    "load_configuration",
    "read_configuration",
]
