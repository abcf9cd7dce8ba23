"""The lane's process: what it serves, runs and times."""
