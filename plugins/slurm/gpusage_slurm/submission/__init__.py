"""A job on its way into the queue: what it asks for, and what is set in it."""
