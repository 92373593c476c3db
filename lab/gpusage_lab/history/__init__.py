"""Fits the history of jobs that name no model, and evaluates it: `gpusage train --history`, and the bench of it."""
