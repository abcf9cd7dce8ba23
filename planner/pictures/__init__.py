"""Draws pictures of plans as SVG, for light and dark pages."""
