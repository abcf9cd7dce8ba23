"""The driver's side: lanes as processes, and their verbs for one sequence."""
