"""Shapes that ship, and what of a Hugging Face config one is made of."""
