"""Generates training text with the target itself."""
