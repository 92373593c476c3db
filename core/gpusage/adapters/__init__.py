"""What a workload manager's plugin may use of core: each module here names one purpose, and what serves it.

The built-in managers import nothing else of core (`tests/test_layers.py`); a site's own manager may do the same. What
every plugin needs is the contract, `gpusage_hooks`, and not this.
"""
