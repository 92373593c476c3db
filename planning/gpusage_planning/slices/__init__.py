"""Which MIG layout serves a site's jobs: `layouts` has what a GPU can be cut into, `search` tries it."""
