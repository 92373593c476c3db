"""What predictors learned from measurements, and how far the truth may lie from a point."""
