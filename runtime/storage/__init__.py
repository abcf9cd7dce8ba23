"""Folders of weights: what a drafter or exit looks like on disk."""
