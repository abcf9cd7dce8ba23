"""A small language model as the draft."""
