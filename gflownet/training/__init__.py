"""Training of one model: optimisers, schedules, steps, precision, devices and random states, without data or loss."""
