"""Capture: both views of a model, with the user's own lines."""

import inspect
import subprocess
import sys

import torch
from torch import nn

from npulift.model import Dim, ModelSpec
from npulift.tracing import capture


class Branchy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = self.first(x).relu()
        if x.mean() < 0.01:
            return x
        return torch.masked_select(self.second(x), x > 0.5).sum()


def line_of(text):
    source, start = inspect.getsourcelines(Branchy)
    return start + next(i for i, s in enumerate(source) if text in s)


def test_linear_has_the_flops_of_the_closed_form():
    seen = capture(ModelSpec(nn.Linear(64, 32), (torch.ones(5, 64),)))
    assert [op.flops for op in seen.find("aten::linear")] == [2 * 5 * 64 * 32]


def test_convolution_reads_and_writes_each_operand_once():
    seen = capture(ModelSpec(nn.Conv2d(3, 8, 3, bias=False), (torch.ones(1, 3, 10, 10),)))
    op = next(seen.find("aten::conv2d", origin="export"))
    assert (op.bytes_read, op.bytes_written) == (4 * (3 * 10 * 10 + 8 * 3 * 3 * 3), 4 * 8 * 8 * 8)


def test_eager_shows_the_fused_encoder_that_export_does_not():
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    seen = capture(ModelSpec(model, (torch.randn(2, 5, 32),)))
    assert [op.origin for op in seen.find("aten::_transformer_encoder_layer_fwd")] == ["eager"]


def test_each_data_dependent_spot_has_the_users_line():
    seen = capture(ModelSpec(Branchy().eval(), (torch.ones(2, 8),)))
    spots = {(s.kind, s.location.line) for s in seen.data_dependent}
    assert ("branch", line_of("if x.mean()")) in spots


def test_a_size_that_depends_on_data_is_found_where_the_model_does_run():
    seen = capture(ModelSpec(Branchy().eval(), (torch.full((2, 8), 9.0),)))
    assert {s.location.line for s in seen.data_dependent if s.kind == "size"} <= {line_of("masked_select")}


def test_module_paths_and_lines_are_the_users_own():
    seen = capture(ModelSpec(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (torch.ones(1, 3, 8, 8),)))
    assert [op.module for op in seen.exported_ops] == ["0", "1"]


def test_a_dim_that_varies_stays_symbolic():
    spec = ModelSpec(nn.Linear(4, 2), (torch.ones(3, 4),), dynamic_dims={0: {0: Dim("batch", 1, 64)}})
    (op,) = capture(spec).find("aten::linear", origin="export")
    assert isinstance(op.outputs[0].shape[0], str)


def test_channels_last_is_told_from_contiguous():
    x = torch.ones(1, 3, 8, 8).to(memory_format=torch.channels_last)
    seen = capture(ModelSpec(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), (x,)))
    op = next(seen.find("aten::convolution", origin="eager"))
    assert op.inputs[0].layout == "channels_last"


def test_a_pass_in_train_mode_leaves_the_users_statistics_alone():
    model = nn.BatchNorm1d(4).train()
    capture(ModelSpec(model, (torch.randn(8, 4),)))
    assert torch.equal(model.running_mean, torch.zeros(4))


def test_seven_billion_parameters_are_captured_on_the_meta_device_in_little_memory(root):
    """Own process, since the limit is on the whole process: under 2 GB resident. The 30 s limit is looked at by `make bench`."""
    code = (
        "import resource, sys; sys.path.insert(0, 'examples')\n"
        "from npulift.loading import load_model; from npulift.tracing import capture\n"
        "seen = capture(load_model('examples/decoder_7b.py:model'))\n"
        "print(len(list(seen.find('aten::linear'))), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=300)
    linears, kilobytes = map(int, done.stdout.split())
    assert (linears, kilobytes < 2_000_000) == (32 * 7 + 1, True)
