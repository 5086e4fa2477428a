"""Verification: a result document is checked by replaying its search and running a sample of its trials again."""
