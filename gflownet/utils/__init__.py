"""Plumbing between processes, and nothing else."""
