"""What a site's own runs tell of a job that names no model: by who submits it, under what name, and what it asks."""
