"""The command line: what scripts rely on."""

from __future__ import annotations

import json
import subprocess
import sys

import ascend_scripts

from npulift.profile import Profile


def npulift(*arguments, cwd):
    return subprocess.run([sys.executable, "-m", "npulift", *arguments], capture_output=True, text=True, cwd=cwd, check=False)


def test_simulate_writes_json_profile_trace_and_page(tmp_path):
    (tmp_path / "train.py").write_text(ascend_scripts.FALLBACKS + "import sys\nprint('args', sys.argv[1:])\n")
    done = npulift("simulate", "train.py", "--target", "ascend-910b2", "--json", "o.json", "--profile", "p.parquet", "--trace", "t.json", "--html", "o.html", "--", "--lr", "1",
                   cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "o.json").read_text())
    assert {"npulift_version", "command", "input", "target", "ok", "findings", "fallbacks", "peak_memory_bytes", "time"} <= set(data)
    assert {(f["operator"], f["count"], f["line"]) for f in data["fallbacks"]} == {("aten::_transformer_encoder_layer_fwd", 3, 9), ("aten::_logcumsumexp", 1, 10)}
    assert "args ['--lr', '1']" in done.stderr
    assert Profile.read(tmp_path / "p.parquet").meta["chip"] == "ascend-910b2"
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["ph"] for e in events} >= {"X", "M", "C"}
    assert (tmp_path / "o.html").read_text().startswith("<!")


def test_diff_of_two_scripts_names_the_launch_that_a_line_adds(tmp_path):
    (tmp_path / "a.py").write_text("import torch\nimport torch_npu\nx = torch.ones(4).npu()\nx = x * 2\n")
    (tmp_path / "b.py").write_text("import torch\nimport torch_npu\nx = torch.ones(4).npu()\nx = x * 2\nx.relu()\n")
    done = npulift("simulate", "--diff", "a.py", "b.py", "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(c["change"], c["type"], c["line"]) for c in json.loads(done.stdout)["changes"]] == [("added", "aclnnRelu", 5)]


def test_a_script_that_raises_ends_with_one_and_without_a_traceback_of_npulift(tmp_path):
    (tmp_path / "bad.py").write_text("import torch\nimport torch_npu\nraise ValueError('broken data')\n")
    done = npulift("simulate", "bad.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "broken data" in done.stdout
    assert "npulift/ascend" not in done.stderr


def test_a_missing_script_is_a_mistake_in_the_call(tmp_path):
    done = npulift("simulate", "none.py", cwd=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (2, "npulift: There is no script none.py.")


def test_check_for_ascend_writes_sarif_on_the_users_line(tmp_path):
    (tmp_path / "m.py").write_text(
        "import torch\n\n\nclass Sum(torch.nn.Module):\n    def forward(self, x):\n        return torch.logcumsumexp(x, 0)\n\n\n"
        "def factory():\n    return Sum(), (torch.randn(4, 4),)\n")
    done = npulift("check", "m.py:factory", "--target", "ascend-910b2", "--format", "sarif", cwd=tmp_path)
    results = json.loads(done.stdout)["runs"][0]["results"]
    lines = {(r["ruleId"], r["locations"][0]["physicalLocation"]["region"]["startLine"]) for r in results}
    assert ("NPU110", 6) in lines
