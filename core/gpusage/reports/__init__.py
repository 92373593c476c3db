"""What a site's store tells of a time: tallies, verdicts with their rules, lines and a page."""
