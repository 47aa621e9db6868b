"""Computation graphs to PyTorch modules."""
