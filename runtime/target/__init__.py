"""The target model: its operations on one sequence, and early exits."""
