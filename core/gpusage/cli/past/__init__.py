"""What became of jobs: `gpusage decisions`, `gpusage report` and `gpusage train --history`, from the store."""
