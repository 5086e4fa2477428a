"""Many capacities: sweeps, suites, fits, reproductions of papers, and verification of records."""
