"""gfnx's side of bench_hypergrid.py, run in gfnx's environment by `PeerProcess`.

Each JSON line `{"do": "sample" or "train", "repeats": n, ...}` with the fields of Settings is answered with the CPU
seconds of n batches, or of n training steps. Rollout, masks, environment and reward are gfnx's own; the policy and the
loss are those of its script baselines/tb_hypergrid.py, with everything of a batch in one jitted function.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from time import process_time
from typing import Any

import gfnx
import jax
import jax.numpy as jnp
import optax
from gfnx.utils.rollout import forward_rollout, forward_trajectory_log_probs
from process import serve


@dataclass(frozen=True)
class Settings:
    """A grid, a batch size, and the policy: hidden layers of a width, with a uniform P_B."""

    num_dims: int
    side: int
    batch: int
    width: int
    num_layers: int
    learning_rate: float
    learning_rate_log_z: float
    seed: int = 0


class Side:
    """An environment, an untrained policy that samples, and a policy in training."""

    def __init__(self, settings: Settings) -> None:
        reward = gfnx.EasyHypergridRewardModule()
        env = gfnx.HypergridEnvironment(reward, dim=settings.num_dims, side=settings.side)
        key, sub = jax.random.split(jax.random.PRNGKey(settings.seed))
        params = env.init(sub)
        sizes = [settings.num_dims * settings.side, *[settings.width] * settings.num_layers, settings.num_dims + 1]
        initial = jax.nn.initializers.he_uniform()
        keys = jax.random.split(key, len(sizes))
        layers = [(initial(k, (m, n)), jnp.zeros(n)) for k, m, n in zip(keys[1:], sizes[:-1], sizes[1:], strict=True)]
        weights = {"layers": layers, "log_z": jnp.zeros(())}
        rates = {"layers": optax.adam(settings.learning_rate), "log_z": optax.adam(settings.learning_rate_log_z)}
        optimiser = optax.multi_transform(rates, {"layers": "layers", "log_z": "log_z"})

        def logits(layers: Any, observed: Any) -> Any:
            *hidden, (matrix, bias) = layers
            for m, b in hidden:
                observed = jax.nn.relu(observed @ m + b)
            forward = observed @ matrix + bias
            return forward, jnp.zeros((*forward.shape[:-1], settings.num_dims))

        def policy(_: Any, observed: Any, layers: Any) -> Any:
            forward, backward = logits(layers, observed)
            return forward, {"forward_logits": forward, "backward_logits": backward}

        def rollout(key: Any, layers: Any) -> Any:
            return forward_rollout(key, settings.batch, policy, layers, env, params)

        def loss(weights: Any, data: Any, log_reward: Any) -> Any:
            forward, backward = logits(weights["layers"], data.obs)
            data = data.replace(info={"forward_logits": forward, "backward_logits": backward})
            log_forward, log_backward = forward_trajectory_log_probs(env, data, params)
            return jnp.square(weights["log_z"] + log_forward - log_backward - log_reward).mean()

        @jax.jit
        def sample(key: Any, weights: Any) -> Any:
            data, info = rollout(key, weights["layers"])
            return data.state, data.action, data.pad, info["log_gfn_reward"]

        @jax.jit
        def train(key: Any, weights: Any, state: Any) -> Any:
            data, info = rollout(key, weights["layers"])
            gradient = jax.grad(loss)(weights, data, info["log_gfn_reward"])
            updates, state = optimiser.update(gradient, state, weights)
            return optax.apply_updates(weights, updates), state

        self.key, self.weights, self.trained = keys[0], weights, (weights, optimiser.init(weights))
        self._sample, self._train = sample, train
        self.sample(), self.train()  # compiled before the first turn

    def sample(self) -> None:
        """Sample a batch of trajectories with their log-rewards."""
        self.key, key = jax.random.split(self.key)
        jax.block_until_ready(self._sample(key, self.weights))

    def train(self) -> None:
        """Take a training step on a batch of new trajectories."""
        self.key, key = jax.random.split(self.key)
        self.trained = jax.block_until_ready(self._train(key, *self.trained))


side = lru_cache(maxsize=None)(Side)


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """Return the CPU seconds of the batches of a message."""
    do, repeats = message.pop("do"), message.pop("repeats")
    if do not in ("sample", "train"):
        raise ValueError(f"do: expected sample or train, got {do!r}")
    call = getattr(side(Settings(**message)), do)
    start = process_time()
    for _ in range(repeats):
        call()
    return {"cpu_seconds": process_time() - start}


if __name__ == "__main__":
    serve(answer)
