"""Built-in architectures and solvers, one per file."""
