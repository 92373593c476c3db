"""Checks the plugin: run it where gpusage is installed."""

from pathlib import Path
from tempfile import TemporaryDirectory

import site_plugin

from gpusage_hooks.checks import check_plugin, check_reader

with TemporaryDirectory() as folder:
    model, broken = Path(folder, "mlp.widths"), Path(folder, "broken.widths")
    model.write_text("784 512 10", encoding="utf-8")
    broken.write_text("784 many", encoding="utf-8")
    print(*check_plugin(site_plugin, sources=[str(model)]))
    check_reader(site_plugin.read_model, broken=[str(broken)])
