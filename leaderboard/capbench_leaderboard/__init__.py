"""The leaderboard: ranks record files with error bars and writes tables and a site that others can check."""
