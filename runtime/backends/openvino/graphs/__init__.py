"""Graphs of a decoder's layers and heads, and calling them."""
