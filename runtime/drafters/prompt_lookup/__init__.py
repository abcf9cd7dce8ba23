"""Prompt lookup: no model at all; what followed the last tokens before is drafted again."""
