"""Weights in the forms that graphs hold."""
