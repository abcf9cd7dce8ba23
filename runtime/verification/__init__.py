"""Verification rules, sampling, and the replay of known texts."""
