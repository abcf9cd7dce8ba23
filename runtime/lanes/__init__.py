"""The driver's side: lanes as processes, and their calls for one sequence."""
