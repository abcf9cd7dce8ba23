"""What pays on a platform that nobody measured: placements, methods and settings, from data sheets and model shapes."""
