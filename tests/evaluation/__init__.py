"""Tests of gflownet.evaluation."""
