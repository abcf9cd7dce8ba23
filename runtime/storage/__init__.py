"""Weights as arrays, and the folders of models, trained drafters and exits on disk."""
