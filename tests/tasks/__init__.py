"""Tests of the built-in tasks."""
