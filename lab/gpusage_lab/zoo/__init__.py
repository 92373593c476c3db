"""Cards of the models that the public measurements name and of those that users name, and how they are made."""
