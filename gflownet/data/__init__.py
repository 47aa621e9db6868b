"""Sampler, replay buffer and data source."""
