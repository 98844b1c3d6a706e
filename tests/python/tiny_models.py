"""Models of other packages in configurations of a few thousand weights, with random ones: nothing is
downloaded."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import torch
import transformers

TOKENS = {"vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
ENCODER = {"hidden_size": 32, "intermediate_size": 72, "num_attention_heads": 2, "num_hidden_layers": 2}
CONFIGS = {
    "bert": lambda: transformers.BertConfig(**TOKENS, **ENCODER),
    "roberta": lambda: transformers.RobertaConfig(**TOKENS, **ENCODER, max_position_embeddings=40),
    "gpt2": lambda: transformers.GPT2Config(**TOKENS, n_embd=32, n_head=2, n_layer=2, n_positions=32),
    "t5": lambda: transformers.T5Config(
        vocab_size=60, d_model=32, d_kv=16, d_ff=72, num_layers=2, num_heads=2, decoder_start_token_id=0
    ),
    "llama": lambda: transformers.LlamaConfig(**TOKENS, **ENCODER, num_key_value_heads=1),
    "mixtral": lambda: transformers.MixtralConfig(
        **TOKENS, **ENCODER, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2
    ),
    "vit": lambda: transformers.ViTConfig(**ENCODER, image_size=16, patch_size=4),
    "siglip": lambda: transformers.SiglipVisionConfig(**ENCODER, image_size=16, patch_size=4),
    "resnet": lambda: transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1], layer_type="bottleneck"
    ),
    "whisper": lambda: transformers.WhisperConfig(
        **TOKENS,
        decoder_start_token_id=1,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=72,
        decoder_ffn_dim=72,
        num_mel_bins=8,
        max_source_positions=10,
        max_target_positions=20,
    ),
}


def made(cls: str, config: str, **changes: object) -> transformers.PreTrainedModel:
    """A model of the class by name, the same each time, in evaluation."""
    torch.manual_seed(0)
    sizes = CONFIGS[config]()
    for name, value in changes.items():
        setattr(sizes, name, value)
    return getattr(transformers, cls)(sizes).eval()


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(3, 60, shape or (2, 9), generator=torch.Generator().manual_seed(1))


def reloaded(model, folder):
    """What from_pretrained gives, which must have found all it looked for."""
    model.save_pretrained(folder)
    again, found = type(model).from_pretrained(folder, output_loading_info=True)
    assert not any(found.values()), found
    return again
