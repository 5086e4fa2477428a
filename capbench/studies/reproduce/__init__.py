"""Reproductions: recipes with the claims of a paper, the data measured for them, and the verdicts."""
