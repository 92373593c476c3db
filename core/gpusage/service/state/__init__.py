"""What decisions rest on, kept fresh in threads of their own."""
