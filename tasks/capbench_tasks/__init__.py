"""Built-in tasks, one per file, each with its bounds in a file beside it."""
