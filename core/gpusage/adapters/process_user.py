"""The user that this process runs as."""

from __future__ import annotations

import os
import pwd

from gpusage_hooks.errors import RequestError


def user_name() -> str:
    """Return the name of the user that this process runs as, whatever the environment says.

    Raises:
        RequestError: The user has no name; daemons run nothing for such a user.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        message = f"User must have a name; got uid {os.getuid()} without one. Add it to /etc/passwd."
        raise RequestError(message) from error
