"""Sensitivity of a search: other acceptance, other speed of the draft, faster parts."""
