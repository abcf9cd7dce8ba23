"""Drafters: one folder per kind, with its model, drafter and folder formats."""
