"""From what a user submits to an application that runs."""
