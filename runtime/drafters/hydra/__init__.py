"""Hydra heads: Medusa heads that see the tokens drafted before them."""
