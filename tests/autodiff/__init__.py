"""Tests of gflownet.autodiff."""
