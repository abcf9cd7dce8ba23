"""Compares simulation and real runs, and writes the results."""
