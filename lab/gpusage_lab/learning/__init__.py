"""How the predictors' artifacts are fitted and scored; nothing here is imported when gpusage predicts."""
