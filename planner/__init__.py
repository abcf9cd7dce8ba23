"""Finds the schedule that pays: search, what-if, verdict, exports and the report."""
