"""Repeats a plan with other numbers, to find which of them would change its answer."""
