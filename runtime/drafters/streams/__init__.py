"""Streams inside a target or a draft, which guess further tokens in the same pass."""
