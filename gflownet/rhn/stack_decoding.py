"""A stack of recurrent layers as a `LanguageModel`: one token at a time from weights folded once.

R is the number of rows (sequences), W the width of the layers, S of a state.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.cell import cell
from gflownet.rhn.fold import fold, sizes_of
from gflownet.rhn.stack_model import RecurrentLayer, RecurrentStack


class StackDecoder:
    """A `RecurrentStack` as a `LanguageModel`; a change of its weights needs `refresh`."""

    def __init__(self, model: RecurrentStack) -> None:
        """Fold the weights of the RHN layers."""
        self._model = model
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the weights again."""
        config = self._model.config
        owned = {place: self._model.layer(place) for place in set(config.owners)}
        self._folds = {place: fold([layer]) for place, layer in owned.items() if not isinstance(layer, RecurrentLayer)}

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return self._model.config.vocabulary_size

    @property
    def state_shape(self) -> tuple[int, int]:
        """(layers, S)."""
        return len(self._model.config.layers), self._model.config.state_width

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self._model.embedding.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._model.embedding.device

    @torch.no_grad()
    def prefill(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return logits and states as `LanguageModel.prefill`, neighbouring RHN layers along the wavefront.

        Raises:
            ValueError: no token.
        """
        logits, last = self._model(tokens, state)
        return logits[:, -1], last

    @torch.no_grad()
    def step(self, tokens: Tensor, state: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return logits and states as `LanguageModel.step`: first tokens have state zero, in RHN layers no adapter."""
        if starts is not None:
            state = state.masked_fill(starts.view(1, -1, 1), 0)
        x, new_states = F.embedding(tokens, self._model.embedding), []
        for place, given in enumerate(state.unbind(0)):
            x, last = self._layer_step(place, x, given, starts)
            new_states.append(F.pad(last, (0, state.shape[-1] - last.shape[-1])))
        return self._model.logits(x), torch.stack(new_states)

    def _layer_step(self, place: int, x: Tensor, state: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the output [R, W] of a layer for x [R, W], and its new state [R, width of the state]."""
        layer, width = self._model.layer(place), x.shape[-1]
        if isinstance(layer, RecurrentLayer):
            out, last = layer(x.unsqueeze(1), state[:, : layer.state_width])
            return out.squeeze(1), last
        folded = self._folds[self._model.config.owners[place]]
        dtype = folded.entry.dtype
        has_previous = None if starts is None else (~starts).to(dtype).view(1, -1, 1)
        given = state[None, :, :width].to(dtype)
        out = cell(x.unsqueeze(0).to(dtype), given, has_previous, sizes_of(layer), folded)[0].to(x.dtype)
        return out, out
