"""Generates text from a trained model, byte by byte with a cache of keys and values."""

from __future__ import annotations

import torch

from .model import ByteTransformer


@torch.no_grad()
def generate(
    model: ByteTransformer, prompt: bytes, count: int, seed: int = 0, temperature: float = 0.7
) -> bytes:
    """Returns `count` bytes that follow `prompt` (at least one byte), drawn from the seed.

    The same seed and weights give the same bytes. When the context is full, the last half of it is read again
    and generation goes on from there.
    """
    generator = torch.Generator().manual_seed(seed)
    context, device = model.shape.context, model.cos.device
    text = list(prompt)
    logits, cache = model.extend(torch.tensor([text[-context:]], device=device), None)
    for _ in range(count):
        # Bytes are drawn on the CPU, wherever the model is: one generator, one seed.
        probabilities = (logits[0, -1].float().cpu() / temperature).softmax(0)
        text.append(int(torch.multinomial(probabilities, 1, generator=generator)))
        if cache.seen == context:
            logits, cache = model.extend(torch.tensor([text[-max(1, context // 2) :]], device=device), None)
        else:
            logits, cache = model.extend(torch.tensor([text[-1:]], device=device), cache)
    return bytes(text[len(prompt) :])


def printable(text: bytes) -> str:
    """Decodes text for a terminal or a page: invalid UTF-8 and control characters (escape sequences) become
    the replacement mark."""
    decoded = text.decode("utf-8", "replace").expandtabs(4)
    return "".join(c if c == "\n" or c.isprintable() else "\ufffd" for c in decoded)
