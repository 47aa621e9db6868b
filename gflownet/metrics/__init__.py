"""Exact terminating distributions and distances between distributions."""
