"""Tests of gflownet.utils."""
