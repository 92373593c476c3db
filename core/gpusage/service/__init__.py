"""gpusaged: the local daemon that adapters ask.

* `sockets`, `servers`: who may connect, and the lines that a connection may send; `protocol`: the content of a line
* `dispatcher`, `request_handler`, `engine`: who answers a line; the engine decides, in a thread of its own
* `snapshots`, `configuration_watch`, `reservations`, `caches`, `learner`: the basis of a decision, kept fresh
* `job_monitor`, `requeue`, `usage_collector`: jobs after their decisions; `recorder`, `metrics`: the records

Decisions: docs/decisions/service.md
"""
