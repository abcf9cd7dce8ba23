"""Compares public measurements of speculation with predictions from shipped data."""
