"""A small ViT that is trained on scikit-learn's handwritten digits in seconds, so there is a real accuracy to lose."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from npulift import ModelSpec


class DigitsViT(nn.Module):
    """8 x 8 images as 16 patches of 2 x 2; three encoder layers of width 48."""

    def __init__(self, width: int = 48, layers: int = 3, heads: int = 4):
        super().__init__()
        self.embed = nn.Conv2d(1, width, 2, 2)
        self.position = nn.Parameter(torch.zeros(1, 16, width))
        self.encoder = nn.ModuleList(Encoder(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, image):
        x = self.embed(image).flatten(2).transpose(1, 2) + self.position
        for layer in self.encoder:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


class Encoder(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_2(x))


def model(epochs: int = 30) -> ModelSpec:
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16.0
    labels = torch.from_numpy(digits.target)
    order = torch.randperm(len(labels))
    train, test = order[:1400], order[1400:]
    module = DigitsViT()
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=epochs * 22)
    for _epoch in range(epochs):
        for batch in train[torch.randperm(1400)].split(64):
            loss = nn.functional.cross_entropy(module(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    module.eval()
    evaluation = tuple((images[i : i + 1],) for i in test.tolist())
    wanted = labels[test]

    def accuracy(outputs: list[tuple[torch.Tensor, ...]]) -> float:
        return float((torch.cat([logits for (logits,) in outputs]).argmax(1) == wanted).float().mean())

    calibration = tuple((images[i : i + 1],) for i in train[:200].tolist())
    return ModelSpec(module, evaluation[0], calibration=calibration, evaluation=evaluation, metric=accuracy, metric_name="accuracy", input_names=("image",))
