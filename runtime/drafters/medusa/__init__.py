"""Medusa heads: each drafts one position ahead, independently."""
