"""What the site's network carries for each GPU: read only where a training runs on several hosts."""

from __future__ import annotations

from collections.abc import Sequence

from gpusage.decisions.advisor import advisor
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Gpu


def of_site(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return *gpus* as the site's network joins them.

    Raises:
        RequestError: A rate of the configuration is not above 0.
        DeviceError: It names a GPU that the catalogue has not.
    """
    from gpusage.settings.configuration_file import read_configuration  # msgspec; only on several hosts

    rates = read_configuration()[0].network.gbit_per_s
    for name, rate in rates.items():
        advisor().catalogue.find(name)
        if not 0 < rate < float("inf"):
            message = f"Key 'network.gbit_per_s.{name}' must be Gb/s above 0; got {rate!r}. Change it."
            raise RequestError(message)
    catalogue = advisor().catalogue.with_networks(rates)
    return [catalogue.find(gpu.name) for gpu in gpus]
