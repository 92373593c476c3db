"""From a user's submission to an application that runs."""
