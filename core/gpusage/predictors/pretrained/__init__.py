"""The artifacts that gpusage comes with, as JSON: `gpusage.predictors.artifacts` decodes them."""
