"""Several sequences under one pass: what they add up to."""
