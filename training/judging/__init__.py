"""Judging trained drafters, and the card that reports the figures."""
