"""Built-in tasks, each in a file with its bounds."""
