"""gpusage's adapter to Hadoop YARN."""
