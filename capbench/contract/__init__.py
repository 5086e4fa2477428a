"""What a plugin author implements: tasks, architectures, bounds, solvers, and the hooks that offer them."""
