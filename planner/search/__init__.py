"""Predicts and ranks all schedules of a search space, on a measured profile and a record."""
