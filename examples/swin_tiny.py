"""Swin-Tiny at 224 x 224 from transformers, with random weights: shifted windows, so rolls and window partitions."""

import torch
from transformers import SwinConfig, SwinForImageClassification


class Logits(torch.nn.Module):
    """The classifier's logits alone, from pixels."""

    def __init__(self, swin: torch.nn.Module):
        super().__init__()
        self.swin = swin

    def forward(self, pixels):
        return self.swin(pixel_values=pixels).logits


def model():
    torch.manual_seed(0)
    return Logits(SwinForImageClassification(SwinConfig(num_labels=1000))).eval(), (torch.randn(1, 3, 224, 224),)
