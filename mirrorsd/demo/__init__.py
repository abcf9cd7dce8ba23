"""All steps on this machine, within a given time."""
