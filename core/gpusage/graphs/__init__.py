"""Model file or name -> ModelGraph, and ModelGraph <-> card."""
