"""Finding plugins: which are installed, where they come from, and how they are configured."""
