"""The built-in tasks, one file each; shipped as gflownet.tasks."""
