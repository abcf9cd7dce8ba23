"""Times of machines that nobody measured: by data sheets and rooflines."""
