"""Plans for platforms that nobody measured: placements, methods and settings, from data sheets and model shapes."""
