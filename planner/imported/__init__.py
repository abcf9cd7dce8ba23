"""Reads the files of engines and their benchmarks: what rows cost, and how often drafted tokens are accepted."""
