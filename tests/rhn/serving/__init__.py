"""Tests of gflownet.rhn."""
