"""Compiling one model's step into C that runs many models at once, one per lane of a vector."""
