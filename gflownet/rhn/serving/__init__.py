"""Answers to many prompts at once: sampling, the state of every sequence, who is answered next, one step for all."""
