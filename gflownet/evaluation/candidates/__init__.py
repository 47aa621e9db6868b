"""Tasks whose candidates train: the training, losses and metrics, sets."""
