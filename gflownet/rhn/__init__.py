"""Recurrent Hyper Network: every token writes the low-rank adapters of the next token's feed-forward networks."""
