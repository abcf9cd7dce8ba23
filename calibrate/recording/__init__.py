"""Runs a model pair over prompts into an acceptance record."""
