"""What is read from and written to files: result documents, strict JSON, TOML and expressions."""
