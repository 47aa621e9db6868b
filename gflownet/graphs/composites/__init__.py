"""Composites: operations that are graphs of other operations, with settings."""
