"""Records read from a folder, grouped, ranked and compared."""
