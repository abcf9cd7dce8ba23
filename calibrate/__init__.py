"""Measures this machine and these models: device profiles, contention, acceptance records, validation."""
