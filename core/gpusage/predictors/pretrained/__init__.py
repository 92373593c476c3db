"""The artifacts that gpusage comes with, as JSON: `gpusage.predictors.learned.artifacts` decodes them."""
