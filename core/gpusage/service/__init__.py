"""gpusaged: the local daemon that adapters ask.

* `sockets`, `servers`: who may connect, and the lines that a connection may send; `protocol`: what a line says
* `dispatcher`, `request_handler`, `engine`: who answers a line; the engine decides, in a thread of its own
* `snapshots`, `configuration_watch`, `reservations`, `caches`, `learner`: what a decision rests on, kept fresh
* `job_monitor`, `requeue`, `usage_collector`: jobs after their decisions; `recorder`, `metrics`: the records

Decisions: docs/decisions/service.md
"""
