"""Machines by the names that people type: finds the device that a label means, and makes a platform of it."""
