"""Makes training text by the target itself."""
