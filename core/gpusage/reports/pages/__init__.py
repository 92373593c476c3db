"""HTML pages that need no network: one file with its style and its plots inside."""
