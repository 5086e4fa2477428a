"""Running trial groups on a Ray cluster."""
