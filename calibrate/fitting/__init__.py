"""Fits the numbers of a profile, and their errors, to times measured between anchors."""
