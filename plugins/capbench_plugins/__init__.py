"""Built-in architectures and solvers, one a file."""
