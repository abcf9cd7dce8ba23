"""Measures this machine and these models: profiles (`profiling`, `fitting`) and acceptance records (`recording`)."""
