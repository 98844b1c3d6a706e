"""A byte-level decoder-only transformer whose layer matrices a factory makes, dense or block-sparse; the rest
is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 256


@dataclass(frozen=True)
class Shape:
    """Everything that decides the parameters' shapes; widths in features, context in bytes."""

    width: int = 256
    layers: int = 4
    heads: int = 4
    context: int = 256

    @property
    def hidden(self) -> int:
        return 4 * self.width


# Takes (in_features, out_features) and returns a module that maps [..., in] to [..., out], without bias. Its
# weights have variance 1 / (3 fan-in) like nn.Linear's, where fan-in counts the inputs that an output really
# has.
LinearFactory = Callable[[int, int], nn.Module]

KeysValues = tuple[Tensor, Tensor]  # of one attention, each [batch, heads, seen, head width]


@dataclass(frozen=True)
class Cache:
    """What generation keeps of the bytes seen so far."""

    last: Tensor  # int64 [batch, 1]
    attention: list[KeysValues]  # one per layer

    @property
    def seen(self) -> int:
        return int(self.attention[0][0].shape[2])


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies rotary positions (Su et al. 2021) in the half-split form; x [batch, heads, time, head
    width]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Attention(nn.Module):
    """Causal self-attention; the factory makes the layers qkv and out."""

    def __init__(self, shape: Shape, linear: LinearFactory) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = linear(shape.width, 3 * shape.width)
        self.out = linear(shape.width, shape.width)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: KeysValues | None
    ) -> tuple[Tensor, KeysValues]:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        # One new byte attends to everything before it; several at once only come with an empty past.
        y = F.scaled_dot_product_attention(q, k, v, is_causal=time > 1)
        return self.out(y.transpose(1, 2).reshape(batch, time, width)), (k, v)


class Layer(nn.Module):
    """Pre-norm attention and MLP.

    Squared ReLU (So et al. 2021) is cheaper than GELU on a CPU and was never worse here; at 400 steps it is
    0.25 bits per byte better in the dense model.
    """

    def __init__(self, shape: Shape, linear: LinearFactory) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(shape.width, bias=False)
        self.attention = Attention(shape, linear)
        self.norm_mlp = nn.LayerNorm(shape.width, bias=False)
        self.up = linear(shape.width, shape.hidden)
        self.down = linear(shape.hidden, shape.width)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: KeysValues | None
    ) -> tuple[Tensor, KeysValues]:
        y, seen = self.attention(self.norm_attention(x), cos, sin, past)
        x = x + y
        return x + self.down(F.relu(self.up(self.norm_mlp(x))).square()), seen


class ByteTransformer(nn.Module):
    """Maps bytes [batch, time] (int64) to logits [batch, time, 256]."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, linear: LinearFactory, generator: torch.Generator) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        # A second embedding looks up the byte before, so that pairs of bytes are known from the first layer
        # on. Otherwise a model of this size spends most of a short training on them (worth 0.2 to 0.3 bits
        # per byte after 400 steps).
        self.embedding_before = nn.Embedding(VOCABULARY, shape.width)
        self.layers = nn.ModuleList(Layer(shape, linear) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, bias=False)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        head_width = shape.width // shape.heads
        frequency = 10000.0 ** (-torch.arange(0, head_width, 2) / head_width)
        angle = torch.arange(shape.context)[:, None] * frequency
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        with torch.no_grad():
            for embedding in (self.embedding, self.embedding_before):
                embedding.weight.normal_(0.0, 0.5, generator=generator)
            self.head.weight.zero_()
            for layer in self.layers:
                assert isinstance(layer, Layer)
                # The layers that write to the residual stream start small, so that its variance does not grow
                # with depth (GPT-2's rule).
                for writer in (layer.attention.out, layer.down):
                    for parameter in writer.parameters():
                        parameter.mul_((2 * shape.layers) ** -0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.extend(tokens, None)[0]

    def extend(self, tokens: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """Returns the logits of `tokens` [batch, time] and the cache grown by them.

        The tokens follow what `cache` has seen. time is 1 when something was seen before; at most
        shape.context bytes are seen in all.
        """
        seen = 0 if cache is None else cache.seen
        cos, sin = self.cos[seen : seen + tokens.shape[1]], self.sin[seen : seen + tokens.shape[1]]
        # The first byte of a text has none before it; a zero byte takes its place.
        before = torch.zeros_like(tokens[:, :1]) if cache is None else cache.last
        x = self.embedding(tokens) + self.embedding_before(torch.cat((before, tokens[:, :-1]), dim=1))
        grown: list[KeysValues] = []
        for i, layer in enumerate(self.layers):
            x, entry = layer(x, cos, sin, None if cache is None else cache.attention[i])
            grown.append(entry)
        return self.head(self.norm(x)), Cache(tokens[:, -1:], grown)
