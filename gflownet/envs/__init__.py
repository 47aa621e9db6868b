"""One file per MDP, environment and context together."""
