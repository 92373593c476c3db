"""The errors, divided by whose fault they are.

    GpuUsageError
      GraphError      the model
      DeviceError     a GPU name, or our table of GPUs
      RequestError    the job script, the comment or the configuration
      PluginError     a plugin

Each message is one sentence: subject, rule with unit, what was found, what to do.
"""

from __future__ import annotations


class GpuUsageError(Exception):
    """Base of every error that a user can mend."""

    code = "error"


class GraphError(GpuUsageError):
    """A model cannot be read."""

    code = "model"


class DeviceError(GpuUsageError):
    """A GPU is not known."""

    code = "gpu"


class RequestError(GpuUsageError):
    """A request or a setting is malformed."""

    code = "request"


class PluginError(GpuUsageError):
    """A plugin broke the contract."""

    code = "plugin"

    def __init__(self, message: str, *, plugin: str, hook: str) -> None:
        """Remember *plugin* and *hook* beside the message."""
        super().__init__(message)
        self.plugin = plugin
        self.hook = hook
