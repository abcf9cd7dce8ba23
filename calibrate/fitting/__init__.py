"""Fits the numbers of a profile, with their errors, to times that were measured between anchors."""
