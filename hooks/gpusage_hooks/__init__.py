"""The contract between gpusage and its plugins; a plugin needs to import nothing else.

Decisions: docs/decisions/hooks.md
"""

from gpusage_hooks.specs import hookimpl

API_VERSION = 1

__all__ = ["API_VERSION", "hookimpl"]
