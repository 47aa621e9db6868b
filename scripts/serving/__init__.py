"""A server as a process of its own, for those that ask it questions."""
