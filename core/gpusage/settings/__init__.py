"""What a site can set, and the file that it is read from."""
