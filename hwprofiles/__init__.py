"""What the schedules run on: device, link and platform profiles in YAML, with their sources and readers."""
