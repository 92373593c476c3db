"""What users type: the signature of each built-in command. What a command does is imported when it runs."""
