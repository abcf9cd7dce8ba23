"""The times of operations: cost models, durations, and how much lanes slow each other."""
