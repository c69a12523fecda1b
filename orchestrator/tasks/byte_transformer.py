"""A small causal transformer over bytes: pre-norm blocks, learned positions, output tied to the embedding or not."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

BYTES = 256
_INIT_STD = 0.02


class ByteTransformer(nn.Module):
    """Takes bytes int64 ``[n, t]`` with t <= `context`, gives logits of the next byte ``[n, t, 256]``.

    Args:
        width: features of a position, divisible by `heads`.
        tied: whether the output layer shares the embedding's weights.
        dropout: after the embedding and on each residual branch.

    Weights are initialised from N(0, 0.02^2), those that write into the residual stream divided by sqrt(2 layers), as
    in GPT-2 (Radford et al. 2019, section 2.3).
    """

    def __init__(self, *, width: int, layers: int, heads: int, context: int, dropout: float, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, width)
        self.position = nn.Embedding(context, width)
        self.dropout = _dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, BYTES, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("project.weight", "down.weight"))
                nn.init.normal_(parameter, std=_INIT_STD / (2 * layers) ** 0.5 if residual else _INIT_STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.dropout(self.embedding(inputs) + self.position.weight[: inputs.shape[1]])
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.output(self.norm(x))
        return logits


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = _dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        heads = self.query_key_value(self.attention_norm(x)).view(n, t, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.project(mixed.transpose(1, 2).reshape(n, t, width)))
        fed: Tensor = self.dropout(self.down(F.gelu(self.up(self.feed_norm(x)))))
        return x + fed


def _dropout(rate: float) -> nn.Module:
    # No dropout module at rate 0: its mere presence marks a run as depending on how the batch is split.
    return nn.Dropout(rate) if rate > 0 else nn.Identity()
