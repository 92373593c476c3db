"""Models by the name that a library gives them -> `ModelGraph`: from a card of ours, or as the library defines them."""
