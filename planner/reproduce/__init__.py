"""Compares a published table of speed-ups, cell by cell, with a simulation of its machine."""
