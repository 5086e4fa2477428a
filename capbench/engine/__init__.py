"""Training many models at once: trials stacked along a leading lane axis."""
