"""Tests of gflownet.translation."""
