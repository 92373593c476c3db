"""Which plugins there are, and how they are asked."""
