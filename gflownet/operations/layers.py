"""Layers that torch.nn does not have. Each class is stand-alone, so that generated source can contain its text.

Letters: B batch, T positions, D features, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mask_at(mask: Tensor, length: int) -> Tensor:
    """Return a mask [B, 1, T] at fewer positions: that of the first place for which each stands."""
    if torch.overrides.has_torch_function((mask,)):  # one node of torch.fx
        return torch.overrides.handle_torch_function(mask_at, (mask,), mask, length)
    if length == mask.shape[-1]:
        return mask
    return mask[..., torch.arange(length, device=mask.device) * mask.shape[-1] // length]


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """Return values [B, C, L] with zeros in their padding."""
    return x * mask_at(mask, x.shape[-1])


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the means [B, C] of values [B, C, L] without their padding."""
    mask = mask_at(mask, x.shape[-1])
    return (x * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def masked_max(x: Tensor, mask: Tensor) -> Tensor:
    """Return the maxima [B, C] of values [B, C, L] without their padding."""
    return x.masked_fill(mask_at(mask, x.shape[-1]) == 0, -torch.inf).amax(-1)


class Bias(nn.Module):
    """Add a learned number to each feature."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., D] plus the bias."""
        return x + self.bias


class DropPath(nn.Module):
    """Stochastic depth: zero the whole value of an example in training (Huang et al. 2016), and scale the others."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of x, [B, ...]."""
        if not self.training:
            return x
        kept = x.new_empty(x.shape[0], *[1] * (x.dim() - 1)).bernoulli_(1 - self.probability)
        return x * kept / (1 - self.probability)


class LayerScale(nn.Module):
    """Each channel times a learned number (Touvron et al. 2021, equation 4)."""

    def __init__(self, channels: int, num_axes_after: int, initial: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels, *[1] * num_axes_after), initial))

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, ..., C] or [B, C, ...] times the weights."""
        return x * self.weight


class ColumnEmbedding(nn.Module):
    """A learned vector for each value of several columns of categories: one table, column after column."""

    rows: Tensor  # [K, maximum of num_categories] of the table

    def __init__(self, num_categories: tuple[int, ...], features: int) -> None:
        super().__init__()
        total, sizes = sum(num_categories), torch.tensor(num_categories)[:, None]
        self.embedding = nn.Embedding(total, features)
        values = torch.arange(max(num_categories))
        # A value beyond its column has a row beyond the table: torch refuses it at no cost.
        rows = torch.where(values < sizes, values + sizes.cumsum(0) - sizes, total)
        self.register_buffer("rows", rows.int(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors [B, K, D] of integers x [B, K], each below the number of categories of its column.

        Raises: IndexError or RuntimeError of torch for other integers.
        """
        return self.embedding(self.rows.gather(1, x.mT).mT)


class LearnedPositions(nn.Module):
    """Add a learned vector to each position."""

    def __init__(self, num_positions: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(num_positions, features))

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, T, D] plus the first T vectors."""
        return x + self.weight[: x.shape[1]]


class ClassToken(nn.Module):
    """Put a learned vector in front of a sequence (Devlin et al. 2019; Dosovitskiy et al. 2021)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(features))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, 1 + T, D] for x [B, T, D]."""
        return torch.cat((self.weight.expand(x.shape[0], 1, -1), x), 1)


class RotaryPositions(nn.Module):
    """Rotate pairs of features by angles that grow with the position (Su et al. 2021, equation 34).

    Feature i of the first half of a head is paired with feature i of the second half.
    """

    cos: Tensor  # [positions, head size]
    sin: Tensor

    def __init__(self, num_positions: int, head_size: int, base: float) -> None:
        super().__init__()
        self.sizes = num_positions, head_size, base
        dtype = torch.get_default_dtype()
        cos, sin = self._tables()
        self.register_buffer("cos", cos.to(dtype), persistent=False)
        self.register_buffer("sin", sin.to(dtype), persistent=False)

    def _tables(self, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
        num_positions, head_size, base = self.sizes
        places = torch.arange(num_positions) if places is None else places
        frequencies = base ** (-torch.arange(0, head_size, 2, dtype=torch.float64, device=places.device) / head_size)
        angles = (places.double()[..., None] * frequencies).repeat(*[1] * places.dim(), 2)
        return angles.cos(), angles.sin()

    def _apply(self, fn, recurse=True):
        """Change device and dtype; the numbers are exact in the new dtype."""
        before = self.cos.dtype
        super()._apply(fn, recurse)
        if self.cos.dtype != before:
            self.cos, self.sin = (table.to(self.cos) for table in self._tables())
        return self

    def forward(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        """Return the rotated heads [B, heads, T, head size] of the same shape; `places` [B, T]: other positions."""
        cos, sin = (self.cos, self.sin) if places is None else (each[:, None].to(x) for each in self._tables(places))
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin


class LinearBias(nn.Module):
    """ALiBi: scores fall with the distance, by a slope of each head (Press et al. 2022, section 3)."""

    exponents: Tensor  # exact in float32, unlike the slopes

    def __init__(self, heads: int) -> None:
        super().__init__()
        power = 1 << (heads.bit_length() - 1)  # the slopes of other numbers are those of the next powers of two
        exponents = [8 * (head + 1) / power for head in range(power)]
        exponents += [8 * (head + 0.5) / power for head in range(heads - power)]
        self.register_buffer("exponents", torch.tensor(exponents), persistent=False)

    def forward(self, distance: Tensor) -> Tensor:
        """Return what is added to scores [heads, T, S] for the integers by which each key is behind its query."""
        return -(0.5**self.exponents)[:, None, None] * distance.abs()


class RelativeBias(nn.Module):
    """A learned number per head and range of distances is added to scores (Raffel et al. 2020, section 2.1)."""

    def __init__(self, heads: int, *, causal: bool, num_buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__()
        self.causal, self.max_distance = causal, max_distance
        self.embedding = nn.Embedding(num_buckets, heads)

    def forward(self, distance: Tensor) -> Tensor:
        """Return what is added to scores [heads, T, S] for the integers by which each key is behind its query."""
        num = self.embedding.num_embeddings if self.causal else self.embedding.num_embeddings // 2
        size = distance.clamp(min=0) if self.causal else distance.abs()
        exact = num // 2  # one per distance, then ranges that grow
        growth = torch.log(size.clamp(min=1) / exact) / torch.log(torch.tensor(self.max_distance / exact))
        bucket = torch.where(size < exact, size, (exact + growth * (num - exact)).long().clamp(max=num - 1))
        bucket = bucket if self.causal else bucket + num * (distance < 0)
        return self.embedding(bucket).movedim(-1, 0)


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself (Vaswani et al. 2017, section 3.2).

    `qkv` holds the projections of queries, keys and values, one under the other; groups of heads share the `kv_heads`
    keys and values (Ainslie et al. 2023). `norm`: queries and keys are normalised (Henry et al. 2020). `rotate` is
    applied to the heads of queries and keys, `bias_by_distance` gives what is added to scores. `window`: keys at this
    distance and further are not read.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        causal: bool = False,
        bias: bool = True,
        output_bias: bool = True,
        dropout: float = 0.0,
        rotate: nn.Module | None = None,
        kv_heads: int | None = None,
        head_size: int | None = None,
        norm: bool = False,
        window: int | None = None,
        bias_by_distance: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout, self.window = heads, causal, dropout, window
        self.kv_heads, size = kv_heads or heads, head_size or features // heads
        self.qkv = nn.Linear(features, (heads + 2 * self.kv_heads) * size, bias=bias)
        self.output = nn.Linear(heads * size, features, bias=output_bias)
        self.query_norm, self.key_norm = (nn.RMSNorm(size, eps=1e-6) if norm else nn.Identity() for _ in range(2))
        self.rotate, self.bias_by_distance = rotate, bias_by_distance

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, heads, T, size], keys and values [B, kv_heads, T, size] of x [B, T, D], not rotated."""
        heads = self.qkv(x).unflatten(2, (self.heads + 2 * self.kv_heads, -1)).transpose(1, 2)
        query, key, value = heads.split((self.heads, self.kv_heads, self.kv_heads), 1)
        return self.query_norm(query), self.key_norm(key), value

    def mask(self, distance: Tensor, like: Tensor) -> Tensor:
        """Return what is added to scores [T, S] or [heads, T, S] for the distances of keys behind queries."""
        mask = like.new_zeros(()) if self.bias_by_distance is None else self.bias_by_distance(distance).to(like.dtype)
        is_hidden = distance < 0 if self.causal else torch.zeros_like(distance, dtype=torch.bool)
        if self.window is not None:
            is_hidden = is_hidden | (distance.abs() >= self.window)
        return torch.where(is_hidden, -torch.inf, mask)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return [B, T, D] for queries, keys and values."""
        if self.kv_heads < self.heads:
            key, value = (each.repeat_interleave(self.heads // self.kv_heads, 1) for each in (key, value))
        dropout, causal = self.dropout if self.training else 0.0, self.causal and mask is None
        function = nn.functional.scaled_dot_product_attention
        y = function(query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        return self.output(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, D] for x [B, T, D]."""
        query, key, value = self.projected(x)
        if self.rotate is not None:
            query, key = self.rotate(query), self.rotate(key)
        if self.window is None and self.bias_by_distance is None:
            return self.attended(query, key, value)
        places = torch.arange(x.shape[1], device=x.device)
        return self.attended(query, key, value, self.mask(places[:, None] - places, query))


class CarriedAttention(SelfAttention):
    """Causal attention that continues from the keys and values of the last `window` positions of the calls before."""

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, filled: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return [B, T, D] for x [B, T, D] and the next state.

        Args:
            keys, values: [B, kv_heads, window, size] of the positions before x, the last one at the end, not rotated.
            filled: [B, window], 0 before the start of the sequence, else 1: exact in every dtype, unlike a count.
        """
        num_kept, length = keys.shape[2], x.shape[1]
        query, key, value = self.projected(x)
        keys, values = torch.cat((keys, key), 2), torch.cat((values, value), 2)
        filled = torch.cat((filled, filled.new_ones(x.shape[0], length)), 1)
        places, key = torch.arange(num_kept + length, device=x.device), keys  # only differences of places matter
        if self.rotate is not None:
            query, key = self.rotate(query, places[None, num_kept:]), self.rotate(keys, places[None])
        mask = self.mask(places[num_kept:, None] - places, query)
        y = self.attended(query, key, values, torch.where(filled[:, None, None] > 0, mask, -torch.inf))
        keys, values, filled = keys[:, :, length:], values[:, :, length:], filled[:, length:]
        return y, keys.contiguous(), values.contiguous(), filled.contiguous()


class WindowAttention(nn.Module):
    """Attention in the windows of an image, with a learned number per head and offset (Liu et al. 2021, equation 4).

    `shift`: the image is rolled by so many positions before; parts that do not meet in the image do not see each other.
    """

    index: Tensor  # of the table, for each pair of positions of a window
    is_hidden: Tensor  # [number of windows, window^2, window^2]

    def __init__(self, features: int, heads: int, window: int, shift: int, size: tuple[int, int], bias: bool) -> None:
        super().__init__()
        self.heads, self.window, self.shift, self.num_windows = heads, window, shift, [each // window for each in size]
        self.qkv, self.output = nn.Linear(features, 3 * features, bias=bias), nn.Linear(features, features)
        self.table = nn.Parameter(0.02 * torch.randn((2 * window - 1) ** 2, heads))
        row, column = (each.flatten() for each in torch.meshgrid(*[torch.arange(window)] * 2, indexing="ij"))
        offset = (row[:, None] - row + window - 1) * (2 * window - 1) + column[:, None] - column + window - 1
        self.register_buffer("index", offset, persistent=False)
        ends = [torch.tensor([each - window, each - shift]) for each in size]
        part = [torch.bucketize(torch.arange(each), end, right=True) for each, end in zip(size, ends, strict=True)]
        parts = self._windows((3 * part[0][:, None] + part[1])[None, ..., None])[..., 0]
        is_hidden = parts[:, :, None] != parts[:, None] if shift else torch.zeros(1, 1, 1, dtype=torch.bool)
        self.register_buffer("is_hidden", is_hidden, persistent=False)

    def _windows(self, x: Tensor) -> Tensor:
        """Return the windows [B windows, window^2, C] of an image [B, H, W, C]."""
        rows, columns = self.num_windows
        split = x.reshape(-1, rows, self.window, columns, self.window, x.shape[-1])
        return split.transpose(2, 3).reshape(-1, self.window**2, x.shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        """Return an image [B, C, H, W] for x [B, C, H, W]."""
        image = x.movedim(1, -1).roll((-self.shift, -self.shift), (1, 2))
        qkv = self.qkv(self._windows(image)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        mask = self.table[self.index].movedim(-1, 0)  # [heads, window^2, window^2]
        mask = torch.where(self.is_hidden[:, None], -torch.inf, mask)
        scores = (query * query.shape[-1] ** -0.5 @ key.mT).unflatten(0, (-1, mask.shape[0])) + mask
        y = scores.flatten(0, 1).softmax(-1) @ value
        y = self.output(y.transpose(1, 2).flatten(2))
        (rows, columns), window = self.num_windows, self.window
        image = y.reshape(-1, rows, columns, window, window, y.shape[-1]).transpose(2, 3)
        image = image.reshape(-1, rows * window, columns * window, y.shape[-1])
        return image.roll((self.shift, self.shift), (1, 2)).movedim(-1, 1)


class CrossAttention(nn.Module):
    """Multi-head attention of one sequence to another one (Vaswani et al. 2017, section 3.2)."""

    def __init__(
        self,
        features: int,
        key_features: int,
        value_features: int,
        heads: int,
        *,
        causal: bool = False,
        bias: bool = True,
        output_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.query = nn.Linear(features, features, bias=bias)
        self.key = nn.Linear(key_features, features, bias=bias)
        self.value = nn.Linear(value_features, features, bias=bias)
        self.output = nn.Linear(features, features, bias=output_bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return [B, T, D] for a query [B, T, D], keys and values [B, S, features of each]."""
        projected = (self.query(query), self.key(key), self.value(value))
        q, k, v = (each.unflatten(2, (self.heads, -1)).transpose(1, 2) for each in projected)
        dropout = self.dropout if self.training else 0.0
        y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        return self.output(y.transpose(1, 2).flatten(2))


class GatedLinear(nn.Module):
    """(x W + b) * gate(x V + c) (Dauphin et al. 2017; Shazeer 2020): W and V are one matrix."""

    def __init__(self, size_in: int, features: int, gate: str, *, bias: bool = True) -> None:
        super().__init__()
        self.projection = nn.Linear(size_in, 2 * features, bias=bias)
        self.gate = getattr(nn.functional, gate)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., features] for x [..., D]."""
        value, gate = self.projection(x).chunk(2, -1)
        return value * self.gate(gate)


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate computed from the means of all channels (Hu, Shen and Sun 2018)."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, hidden)
        self.excite = nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of x, [B, C, ...]."""
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.flatten(2).mean(2)))))
        return x * gate[(..., *[None] * (x.dim() - 2))]


class CarriedLSTM(nn.LSTM):
    """An LSTM over sequences that continues from the state of the call before."""

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs [B, T, D] for x [B, T, F] from a state of two [B, D], and the last state."""
        y, (hidden, cell) = super().forward(x, (hidden[None].contiguous(), cell[None].contiguous()))
        return y, hidden[0], cell[0]


class CarriedGRU(nn.GRU):
    """A GRU over sequences that continues from the state of the call before."""

    def forward(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs [B, T, D] for x [B, T, F] from a state [B, D], and the last state."""
        y, hidden = super().forward(x, hidden[None].contiguous())
        return y, hidden[0]


class CarriedConvolution(nn.Module):
    """A causal depthwise convolution that continues from the inputs of the call before."""

    def __init__(self, features: int, *, kernel_size: int, dilation: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(features, features, kernel_size, dilation=dilation, groups=features)

    def forward(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return [R, T, W] for x [R, T, W] after the inputs before [R, W, reach], and the next state."""
        window = torch.cat((before, x.mT), 2)
        return self.convolution(window).mT, window[:, :, x.shape[1] :]


class SelectiveScan(nn.Module):
    """The block of Mamba: a state per channel whose steps depend on the input (Gu and Dao 2023, section 3).

    Within chunks of positions the steps are combined pairwise, in log2(chunk) rounds; from chunk to chunk one by one.
    N: numbers of state per channel, E: channels of the block.
    """

    def __init__(self, features: int, inner: int, state_size: int, kernel_size: int, rank: int, chunk: int) -> None:
        super().__init__()
        self.chunk = chunk
        self.input = nn.Linear(features, 2 * inner, bias=False)
        self.convolution = nn.Conv1d(inner, inner, kernel_size, groups=inner)
        self.selection = nn.Linear(inner, rank + 2 * state_size, bias=False)
        self.rate = nn.Linear(rank, inner)
        self.log_decay = nn.Parameter(torch.arange(1.0, state_size + 1).log().repeat(inner, 1))  # [E, N]
        self.skip = nn.Parameter(torch.ones(inner))
        self.output = nn.Linear(inner, features, bias=False)

    def scanned(self, x: Tensor, state: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return [B, T, D] for x [B, T, D] after a state [B, E, N] and inputs of the convolution [B, E, kernel - 1]."""
        value, gate = self.input(x).chunk(2, -1)
        window = torch.cat((before, value.mT), 2)
        u = nn.functional.silu(self.convolution(window)).mT  # [B, T, E]
        sizes = self.rate.in_features, *[self.log_decay.shape[1]] * 2
        rate, to_state, to_output = self.selection(u).split(sizes, -1)
        step = nn.functional.softplus(self.rate(rate))
        outputs = []
        parts = zip(*(each.split(self.chunk, 1) for each in (step, step * u, to_state, to_output)), strict=True)
        for step_part, input_part, to_state_part, to_output_part in parts:
            decay = torch.exp(-step_part[..., None] * self.log_decay.exp())  # [B, chunk, E, N]
            added = input_part[..., None] * to_state_part[:, :, None]
            added = torch.cat(((decay[:, 0] * state + added[:, 0])[:, None], added[:, 1:]), 1)
            distance = 1
            while distance < added.shape[1]:
                late = added[:, distance:] + decay[:, distance:] * added[:, :-distance]
                decay = torch.cat((decay[:, :distance], decay[:, distance:] * decay[:, :-distance]), 1)
                added, distance = torch.cat((added[:, :distance], late), 1), 2 * distance
            outputs.append(torch.einsum("bten,btn->bte", added, to_output_part))
            state = added[:, -1]
        y = self.output((torch.cat(outputs, 1) + self.skip * u) * nn.functional.silu(gate))
        return y, state, window[:, :, x.shape[1] :].contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, D] for x [B, T, D]."""
        inner, state_size = self.log_decay.shape
        before = x.new_zeros(x.shape[0], inner, self.convolution.kernel_size[0] - 1)
        return self.scanned(x, x.new_zeros(x.shape[0], inner, state_size), before)[0]


class CarriedScan(SelectiveScan):
    """A selective scan that continues from the state of the call before."""

    def forward(self, x: Tensor, state: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return [B, T, D] for x [B, T, D], and the next state, see `scanned`."""
        return self.scanned(x, state, before)


class AddedLoss(torch.autograd.Function):
    """A value as it is, whose backward pass also follows a loss: its gradient is added to that of any other loss."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, loss: Tensor) -> Tensor:
        """Return the value."""
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep the loss for its shape."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the value, and 1 for the loss."""
        return gradients[0], torch.ones_like(ctx.saved_tensors[0])


class Experts(nn.Module):
    """A mixture of feed-forward networks, of which each position takes a few (Shazeer et al. 2017; Fedus et al. 2022).

    In training, `balance` times the load-balance loss of Fedus et al. (equation 4) is added to the loss of the model.
    """

    def __init__(self, features: int, hidden: int, num_experts: int, num_active: int, balance: float) -> None:
        super().__init__()
        self.num_active, self.balance = num_active, balance
        self.router = nn.Linear(features, num_experts, bias=False)
        self.up, self.down = (
            nn.Parameter(nn.init.uniform_(torch.empty(num_experts, size_out, size_in), -bound, bound))
            for size_out, size_in, bound in ((hidden, features, features**-0.5), (features, hidden, hidden**-0.5))
        )
        self.up_bias, self.down_bias = (nn.Parameter(torch.zeros(num_experts, size)) for size in (hidden, features))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of x, [..., D]. All experts are computed; the gates of those not taken are 0."""
        scores = self.router(x).softmax(-1)  # [..., experts]
        best, places = scores.topk(self.num_active, -1)
        if self.num_active > 1:  # the gate of a single one is its score: as 1, the router would learn nothing from it
            best = best / best.sum(-1, keepdim=True)
        gates = torch.zeros_like(scores).scatter(-1, places, best)
        hidden = nn.functional.gelu(torch.einsum("...d,ehd->...eh", x, self.up) + self.up_bias)
        outputs = torch.einsum("...eh,edh->...ed", hidden, self.down) + self.down_bias
        y = (gates[..., None] * outputs).sum(-2)
        if not (self.training and self.balance and torch.is_grad_enabled()):
            return y
        taken = (gates > 0).to(x.dtype).flatten(0, -2).mean(0) / self.num_active
        loss = self.balance * scores.shape[-1] * (taken * scores.flatten(0, -2).mean(0)).sum()
        return AddedLoss.apply(y, loss)
