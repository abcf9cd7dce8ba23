"""Judges trained drafters on held-out answers, and writes the card with the figures."""
