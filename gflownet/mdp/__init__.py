"""The contracts of the Markov decision process: actions, states, environment, context, trajectories."""
