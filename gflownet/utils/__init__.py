"""Module names of recursionpharma/gflownet's worker code; the implementation is `gflownet.workers`."""
