"""A GPU for several jobs: what a share costs a job, and how jobs on one GPU slow each other down."""
