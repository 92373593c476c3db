"""`ModelGraph` <-> card: the short text that travels with a job, and the file that a person keeps."""
