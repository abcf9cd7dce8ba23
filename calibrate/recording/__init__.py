"""Records acceptance: runs a model pair over prompts and writes an acceptance record."""
