"""The SQLite store: finished trials and runs, leases between processes, repair, merge and export."""
