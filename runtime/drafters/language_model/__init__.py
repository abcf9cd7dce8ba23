"""Draft models: their passes, their drafter with branches, and their folders."""
