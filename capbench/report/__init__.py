"""Results for people to read: text, plots, pages and progress displays."""
