"""Trains drafters and exit adapters: data, losses and recipes."""
