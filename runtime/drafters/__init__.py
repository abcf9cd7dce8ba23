"""Drafters: a module or folder for each kind, with its model, its drafter and its folder formats."""
