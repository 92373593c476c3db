"""Installing gpusage in Hadoop's configuration, and taking it out again."""
