"""Layers that torch.nn does not have. Each class is stand-alone, so that generated source can contain its text."""
