"""Measures lanes, links and contention into a profile."""
