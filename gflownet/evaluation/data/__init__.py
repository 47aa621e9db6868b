"""Data of candidates: files, tables, examples, checks."""
