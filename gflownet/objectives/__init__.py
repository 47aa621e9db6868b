"""One class per loss."""
