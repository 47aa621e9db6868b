"""Tests of gflownet.workers."""
