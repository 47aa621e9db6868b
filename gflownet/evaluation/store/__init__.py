"""The store: every evaluation in a database, claims of runs, what scores depend on."""
