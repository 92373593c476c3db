"""The laboratory: what measures workloads, fits and scores the predictors; nothing that predicts imports it."""
