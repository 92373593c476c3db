"""Cards of the models that the public measurements name, and how they are made."""
