"""What a run leaves for people to read: the best architectures, as data and as pictures."""
