"""The public face of the project: the few names a user needs, imported lazily."""
