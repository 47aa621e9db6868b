"""Published networks as graph files, and their reference implementations."""
