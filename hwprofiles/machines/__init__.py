"""Machines by the names that people type: what a label of a device means, and a machine made of it."""
