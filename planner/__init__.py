"""Finds the fastest schedule and judges whether speculation pays: search, plans, verdicts, what-if, and pages."""
