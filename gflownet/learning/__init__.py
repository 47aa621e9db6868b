"""The learning loop: gradient steps on rollouts, learning-rate schedules, remembered batches, merging of states."""
