"""One capacity: from the options of a run to its result document."""
