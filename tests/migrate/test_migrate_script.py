"""migrate: CUDA scripts in, NPU scripts out."""

import json

import pytest
import torch

from npulift.errors import NpuliftError
from npulift.migrate import migrate_source
from npulift.migrate.table import entries


def npu(source):
    return migrate_source(source).text


@pytest.mark.parametrize(("cuda", "wanted"), [
    ("x = x.cuda()", "x = x.npu()"),
    ("x = x.cuda(0, non_blocking=True)", "x = x.npu(0, non_blocking=True)"),
    ("d = torch.device('cuda')", "d = torch.device('npu')"),
    ('d = torch.device("cuda:1")', 'd = torch.device("npu:1")'),
    ('d = f"cuda:{rank}"', 'd = f"npu:{rank}"'),
    ("if d.type == 'cuda': pass", "if d.type == 'npu': pass"),
    ("ok = x.is_cuda", "ok = x.is_npu"),
    ("torch.cuda.synchronize()", "torch.npu.synchronize()"),
    ("s = torch.cuda.Stream()", "s = torch.npu.Stream()"),
    ("e = torch.cuda.Event(enable_timing=True)", "e = torch.npu.Event(enable_timing=True)"),
    ("g = torch.cuda.CUDAGraph()", "g = torch.npu.NPUGraph()"),
    ("with torch.cuda.amp.autocast(): pass", "with torch.npu.amp.autocast(): pass"),
    ("s = torch.cuda.amp.GradScaler()", "s = torch.npu.amp.GradScaler()"),
    ("with torch.autocast('cuda', torch.float16): pass", "with torch.autocast('npu', torch.float16): pass"),
    ("s = torch.amp.GradScaler('cuda')", "s = torch.amp.GradScaler('npu')"),
    ("torch.backends.cuda.matmul.allow_tf32 = True", "torch.npu.matmul.allow_hf32 = True"),
    ("torch.distributed.init_process_group('nccl')", "torch.distributed.init_process_group('hccl')"),
    ("loader = DataLoader(d, pin_memory=True, pin_memory_device='cuda')", "loader = DataLoader(d, pin_memory=True, pin_memory_device='npu')"),
    ("os.environ['CUDA_VISIBLE_DEVICES'] = '0'", "os.environ['ASCEND_RT_VISIBLE_DEVICES'] = '0'"),
    ("from torch.cuda.amp import autocast", "from torch_npu.npu.amp import autocast"),
    ("from torch.cuda import synchronize as wait", "from torch_npu.npu import synchronize as wait"),
    ("from apex.optimizers import FusedAdam", "from torch_npu.optim import NpuFusedAdamW as FusedAdam"),
    ("from apex.normalization import FusedLayerNorm", "from torch.nn import LayerNorm as FusedLayerNorm"),
])
def test_each_construct(cuda, wanted):
    assert wanted in npu(f"import os, torch\n{cuda}\n")


@pytest.mark.parametrize("source", [
    '"""Runs on cuda."""\nimport torch\nx = 1\n',
    "import torch\ncuda = 3\nprint(cuda)\n",
    "import torch\nargs.cuda = True\n",
    "import torch\nname = 'barracuda'\n",
    "x = 1\n",
])
def test_what_is_no_cuda_stays(source):
    assert npu(source) == source


SCRIPT = '''# the licence
"""Train."""
from __future__ import annotations

import os
import torch  # the framework
from torch.cuda.amp import GradScaler, autocast

os.environ["CUDA_VISIBLE_DEVICES"] = "0"   # one card


def main():
    model = torch.nn.Linear(4, 4).cuda()    # on the card
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler()
    x = torch.ones(2, 4, device="cuda")
    with autocast():
        loss = model(x).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
'''


def test_a_second_pass_changes_nothing():
    once = npu(SCRIPT)
    assert npu(once) == once


def test_comments_and_spaces_stay():
    assert [text in npu(SCRIPT) for text in ("# the licence", "# the framework", '"0"   # one card', ".npu()    # on the card")] == [True] * 4


def test_no_cuda_is_left():
    assert "cuda" not in npu(SCRIPT).lower()


def test_torch_npu_is_imported_behind_torch():
    assert npu("import torch\nx = torch.ones(1).cuda()\n").splitlines()[1].startswith("import torch_npu")


def test_the_result_is_python():
    compile(npu(SCRIPT), "script", "exec")


FLASH = "from flash_attn import flash_attn_func\nimport torch\ny = flash_attn_func(q, k, v, causal=True, softmax_scale=0.3)\n"


def test_flash_attention_becomes_the_same_numbers():
    q, k, v = (torch.randn(2, 5, 3, 8) for _ in range(3))
    scope = {"q": q, "k": k, "v": v}
    exec("\n".join(line for line in npu(FLASH).splitlines() if "torch_npu" not in line), scope)
    score = torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.3
    score = score.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(scope["y"], torch.einsum("bhqk,bkhd->bqhd", score.softmax(-1), v))


def test_the_unused_import_goes():
    assert "flash_attn" not in npu(FLASH)


def test_an_import_that_is_still_used_stays():
    assert "from flash_attn import flash_attn_varlen_func" in npu("import torch\nfrom flash_attn import flash_attn_varlen_func\ny = flash_attn_varlen_func(q, k, v, c, c, 4, 4)\n")


def test_xformers_causal_bias_is_understood():
    assert "is_causal=True" in npu("import torch\nimport xformers.ops as xops\ny = xops.memory_efficient_attention(q, k, v, attn_bias=xops.LowerTriangularMask())\n")


@pytest.mark.parametrize(("source", "kind"), [
    ("from torch.utils.cpp_extension import CUDAExtension\n", "extension"),
    ("from torch.utils import cpp_extension\nm = cpp_extension.load(name='k', sources=['k.cu'])\n", "extension"),
    ("import cupy\n", "package"),
    ("from flash_attn import flash_attn_varlen_func\nflash_attn_varlen_func(q, k, v, c, c, 4, 4)\n", "attention"),
    ("import os\nos.environ['NCCL_DEBUG'] = 'INFO'\n", "environment"),
    ("import torch\ntorch.cuda.nvtx.range_push('a')\n", "report"),
])
def test_what_needs_a_person_is_reported(source, kind):
    assert kind in {r.kind for r in migrate_source(source).reports}


def test_every_row_of_the_table_names_its_source():
    assert [e for e in entries() if not e.source] == []


def test_what_is_no_python_is_a_clear_error():
    with pytest.raises(NpuliftError, match="line 1"):
        migrate_source("def (:\n", "broken.py")


def test_nothing_is_written_without_write(command, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    done = command("migrate", file, "--json", tmp_path / "out.json")
    assert (done.returncode, file.read_text() == SCRIPT, "+    torch.npu.synchronize()" in json.loads((tmp_path / "out.json").read_text())["diff"]) == (0, True, True)


def test_write_writes(command, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    command("migrate", file, "--write", "--quiet")
    assert file.read_text() == npu(SCRIPT)


@pytest.mark.parametrize("name", ["nowhere.py", "data.bin"])
def test_a_wrong_path_is_a_clear_error(command, tmp_path, name):
    if name == "data.bin":
        (tmp_path / name).write_bytes(b"\x00\xff")
    done = command("migrate", tmp_path / name)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
