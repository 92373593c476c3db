"""HTML pages that need no network: a file with its style and its plots inside."""
