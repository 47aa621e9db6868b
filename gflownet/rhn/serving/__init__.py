"""Answers to many prompts at once: sampling, the state of every sequence, the scheduler, one step for all."""
