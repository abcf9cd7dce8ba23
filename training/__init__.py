"""Trains drafters and exit adapters from recipes: training text, the target's states, tasks, judgement."""
