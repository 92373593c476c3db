"""Predictors of gpusage."""
