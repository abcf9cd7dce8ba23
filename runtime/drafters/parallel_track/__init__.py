"""A draft of parallel tracks: narrow models next to each other that meet twice a step."""
