"""The leaderboard: records of runs, ranked with error bars, as tables and a site that others can check."""
