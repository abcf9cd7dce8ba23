"""The memory that models and lanes need, and whether it is available."""
