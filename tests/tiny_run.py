"""The smallest run of a real search, for tests of what surrounds it."""

# Two steps of the default search, as small as it gets.
TINY_RUN = (
    "num_training_steps=2",
    "algo.num_from_policy=2",
    "model.num_layers=1",
    "model.num_emb=8",
    "env.max_hidden_nodes=1",
    "env.max_edges=3",
    "evaluation.num_epochs=1",
    "replay.use=false",
    "wandb.mode=disabled",
)
