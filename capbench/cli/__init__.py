"""The command line: a command parses, calls one function, prints. Heavy imports wait until a command runs."""
