"""What `gpu.py` checks and measures, a module for each kind of thing."""
