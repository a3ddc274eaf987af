"""Judge room: rows and SLOs in, verdicts with reasons out. Pure functions, no I/O, no clock."""
