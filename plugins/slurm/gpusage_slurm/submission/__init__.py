"""A job on its way into the queue: its request, and the changes in it."""
