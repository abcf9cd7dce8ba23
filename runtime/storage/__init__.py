"""Weights as arrays, and folders: what a model, a drafter, an exit or a model without weights looks like on disk."""
