"""Folders: what a drafter, an exit or a model without weights looks like on disk."""
