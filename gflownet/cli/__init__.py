"""Commands: sample, store, compare, and the completion of the shell."""
