"""npulift check for an Ascend target: what really happens when the model runs on torch_npu."""

from __future__ import annotations

import time

import pytest

import npulift

MODELS = '''
import torch

class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    def forward(self, x):
        return self.layer(x)

def encoder():
    return Encoder().eval(), (torch.randn(2, 16, 32),)

class Forced(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, False)[0]

def forced():
    return Forced(), tuple(torch.randn(1, 2, 8, 16) for _ in range(3))

class Sum(torch.nn.Module):
    def forward(self, x):
        return torch.logcumsumexp(x, 0)

def sums():
    return Sum(), (torch.randn(4, 4),)

class OnCpu(torch.nn.Module):
    def forward(self, x):
        angle = torch.arange(8, dtype=torch.float64)
        return x * angle.cos()

def on_cpu():
    return OnCpu(), (torch.randn(4, 8),)

class NeedsValues(torch.nn.Module):
    def forward(self, x):
        n = int((x > 0).sum())
        if n == 0:
            raise ValueError("no positive value")
        return x * n

def needs_values():
    return NeedsValues(), (torch.ones(4),)

def decoder():
    import transformers
    config = transformers.LlamaConfig(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=11008, use_cache=False)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model
        def forward(self, tokens):
            return self.model(input_ids=tokens).logits
    return Logits(), (torch.zeros(1, 512, dtype=torch.long, device="meta"),)
'''


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "my_models.py"
    path.write_text(MODELS)
    return path


def check(models, name, **options):
    return npulift.check(f"{models}:{name}", "ascend-910b2", **options).findings


def test_the_eager_fast_path_is_found_at_the_users_line_and_its_fix_is_verified(models):
    found = [f for f in check(models, "encoder") if f.code == "NPU110"]
    assert [(f.details["operator"], f.location.line, f.details["fix_verified"]) for f in found] == [("aten::_transformer_encoder_layer_fwd", 9, True)]
    assert "set_fastpath_enabled(False)" in found[0].fix


def test_an_attention_kernel_called_by_name_is_an_error(models):
    found = [f for f in check(models, "forced") if f.code == "NPU111"]
    assert [(f.severity.value, f.location.line) for f in found] == [("error", 16)]


def test_a_tensor_made_on_the_cpu_is_told_and_the_rest_is_seen_as_if_it_were_mended(models):
    found = {(f.code, MODELS.splitlines()[f.location.line - 1].strip()) for f in check(models, "on_cpu") if f.code in ("NPU112", "NPU120")}
    assert ("NPU120", "return x * angle.cos()") in found
    assert ("NPU112", "angle = torch.arange(8, dtype=torch.float64)") in found


def test_a_branch_that_zeros_would_take_wrongly_is_run_with_values(models):
    assert not [f for f in check(models, "needs_values") if f.code == "NPU115"]


def test_another_version_is_answered_from_support_data(models):
    found = [f for f in check(models, "sums", torch_npu="2.6") if f.code == "NPU110"]
    assert [(f.details["operator"], f.details["torch_npu"]) for f in found] == [("aten::_logcumsumexp", "2.6")]


def test_a_version_without_data_is_refused(models):
    with pytest.raises(npulift.NpuliftError, match=r"2\.1 to 2\.15"):
        check(models, "sums", torch_npu="3.0")


def test_a_7b_decoder_without_weights_is_checked_within_a_minute(models):
    start = time.monotonic()
    found = check(models, "decoder")
    assert time.monotonic() - start < 60  # the promise of the command, on any machine that can hold it
    assert not [f for f in found if f.code in ("NPU110", "NPU111", "NPU115", "NPU121")]
