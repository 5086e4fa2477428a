"""Reproductions as text, plots and pages."""
