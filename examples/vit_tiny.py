"""ViT-Tiny/16 at 224 x 224 (12 layers, width 192, 3 heads) from transformers, with random weights: for speed, not for labels."""

import torch
from transformers import ViTConfig, ViTForImageClassification


class Logits(torch.nn.Module):
    """The classifier's logits alone, from pixels."""

    def __init__(self, vit: torch.nn.Module):
        super().__init__()
        self.vit = vit

    def forward(self, pixels):
        return self.vit(pixel_values=pixels).logits


def model():
    torch.manual_seed(0)
    config = ViTConfig(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768, num_labels=1000)
    return Logits(ViTForImageClassification(config)).eval(), (torch.randn(1, 3, 224, 224),)
