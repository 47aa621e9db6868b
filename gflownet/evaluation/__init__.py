"""The task's reward: training a candidate, the evaluator, the store of results."""
