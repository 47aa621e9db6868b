"""Tensor graphs in index notation: nodes, derivatives that are such graphs again, simplification, execution."""
