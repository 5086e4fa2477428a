"""Where trial groups run: in this process, in a worker pool, or on a Ray cluster."""
