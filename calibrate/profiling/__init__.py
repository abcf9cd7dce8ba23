"""Calibration: measures lanes, links and contention, and makes a profile of them."""
