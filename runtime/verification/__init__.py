"""Verification rules, and the distributions that tokens come from."""
