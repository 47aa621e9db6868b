"""Tests of gflownet.graphs."""
