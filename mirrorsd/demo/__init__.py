"""`mirrorsd demo`: all steps on this machine, within a given time."""
