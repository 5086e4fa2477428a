"""From trials to a capacity: the search, the threshold with its interval, summaries and other readings."""
