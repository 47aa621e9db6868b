"""Train a language model on the text of a user, and save it to be generated from and served."""
