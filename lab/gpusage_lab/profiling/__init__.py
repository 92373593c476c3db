"""Measures named workloads on this machine's GPU, alone and together: the tables that the predictors are fitted on."""
