"""The loop: what is kept, what is dropped and why; nothing is lost when it is killed; bad models are named."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

import npulift
from npulift import ModelSpec, Tolerance
from npulift.errors import NpuliftError
from npulift.tune import tune


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(*[nn.Sequential(nn.Conv2d(c, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU()) for c in (3, 32, 32, 32, 32)])
        self.head = nn.Linear(32, 10)
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.uniform_(-0.5, 0.5)
                m.running_var.uniform_(0.5, 2.0)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    torch.manual_seed(0)
    spec = ModelSpec(SmallNet().eval(), (torch.randn(1, 3, 48, 48),), calibration=tuple((torch.randn(1, 3, 48, 48),) for _ in range(8)))
    return spec, folder, tune(spec, "openvino", budget=40, out=folder / "out")


def test_every_trial_says_why_it_was_kept_or_dropped(tuned):
    _spec, _folder, report = tuned
    trials = report.data["trials"]
    assert trials
    assert all(t["reason"] and t["verdict"] in ("kept", "dropped", "failed", "not-applicable") for t in trials)


def test_all_contestants_are_timed_in_one_interleaved_run(tuned):
    _spec, _folder, report = tuned
    baseline = report.data["baseline"]
    assert {"eager", "torch.compile", "onnxruntime"} <= set(baseline)
    assert len({entry["rounds"] for entry in baseline.values()}) == 1


def test_the_json_has_what_the_contract_promises(tuned):
    _spec, _folder, report = tuned
    data = json.loads(json.dumps(report.as_json()))
    assert {"npulift_version", "command", "model", "target", "ok", "findings", "baseline", "tuned", "speedup_vs_eager", "speedup_vs_best_untuned",
            "max_abs_error", "metric", "trials", "placement"} <= set(data)
    assert {"median_s", "spread", "kind"} <= set(data["tuned"])
    assert data["tuned"]["kind"] == "measured"


def test_the_bundle_from_disk_is_within_the_tolerance_of_eager(tuned):
    spec, folder, report = tuned
    x = torch.randn(1, 3, 48, 48)
    got, wanted = npulift.load(folder / "out")(x), spec.module(x)
    limit = spec.tolerance.lossy * 3 * wanted.abs().max()  # another input than those it was verified on
    assert (got - wanted).abs().max() < limit


def test_nothing_is_left_beside_the_bundle(tuned):
    _spec, folder, _report = tuned
    assert [p.name for p in folder.iterdir()] == ["out"]


def test_a_strict_tolerance_keeps_precision_up(tmp_path):
    spec = ModelSpec(SmallNet().eval(), (torch.randn(1, 3, 32, 32),), tolerance=Tolerance(exact=1e-4, lossy=1e-6))
    report = tune(spec, "openvino", budget=15, out=tmp_path / "out")
    kept = {t["change"] for t in report.data["trials"] if t["verdict"] == "kept"}
    assert not any(c.startswith(("int8", "low-precision")) for c in kept)


def test_the_goal_size_makes_the_bundle_smaller(tmp_path):
    spec = ModelSpec(SmallNet().eval(), (torch.randn(1, 3, 32, 32),), tolerance=Tolerance(lossy=0.2))
    report = tune(spec, "openvino", budget=25, goal="size", out=tmp_path / "out")
    size = report.data["size_bytes"]
    assert size["after"] < 0.6 * size["before"]


class Dropping(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)


class Nan(nn.Module):
    def forward(self, x):
        return (x - x) / (x - x)


class Branchy(nn.Module):
    """No bound, so there is no form with a mask either."""

    def forward(self, x):
        while x.sum() > 9:
            x = x / 2
        return x


@pytest.mark.parametrize(("module", "inputs", "said"), [
    (Dropping().eval(), (torch.ones(64),), "something in it is random"),
    (nn.Sequential(nn.Linear(4, 4), nn.Dropout()), (torch.ones(3, 4),), "train mode"),
    (Nan().eval(), (torch.ones(3),), "holds NaN"),
    (nn.Linear(4, 4).eval(), (torch.ones(3, 5),), "cannot be called"),
    (nn.Linear(4, 4, device="meta").eval(), (torch.ones(3, 4, device="meta"),), "meta device"),
])
def test_a_model_that_cannot_be_verified_is_named_with_the_reason(tmp_path, module, inputs, said):
    with pytest.raises(NpuliftError) as caught:
        tune(ModelSpec(module, inputs), "openvino", out=tmp_path / "out")
    assert said in str(caught.value)


def test_a_model_without_one_graph_is_reported_with_its_line_and_not_tuned(tmp_path):
    report = tune(ModelSpec(Branchy(), (torch.ones(3),)), "openvino", out=tmp_path / "out")
    assert not report.ok
    assert "data-dependent" in report.data["export_error"]


def test_an_unknown_target_gets_the_list(tmp_path):
    with pytest.raises(NpuliftError, match="openvino"):
        tune(ModelSpec(nn.ReLU(), (torch.ones(3),)), "no-such-chip", out=tmp_path / "out")


def test_an_intel_npu_that_is_not_here_says_what_to_install(tmp_path):
    if os.path.exists("/dev/accel/accel0"):
        pytest.skip("this machine has an Intel NPU")
    with pytest.raises(NpuliftError, match="driver"):
        tune(ModelSpec(nn.ReLU(), (torch.ones(3),)), "openvino:NPU", out=tmp_path / "out")


def test_an_out_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NpuliftError, match="cannot be written"):
        tune(ModelSpec(nn.Linear(2, 2).eval(), (torch.ones(1, 2),)), "openvino", out=tmp_path / "file" / "out")


def test_a_full_disk_is_said_and_leaves_no_half_bundle(tmp_path):
    """No file may grow over 200 kB: the program of a larger model cannot be written."""
    code = (
        "import resource, sys, torch; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "from npulift import cli\n"
        "cli.main(['tune', sys.argv[1], '--out', sys.argv[2], '--budget', '5s'])"
    )
    model = tmp_path / "large.py"
    model.write_text("import torch\ndef model(): return torch.nn.Linear(512, 512).eval(), (torch.ones(1, 512),)\n")
    done = subprocess.run([sys.executable, "-c", code, f"{model}:model", tmp_path / "out"], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


MODEL = """
import torch
from torch import nn
from npulift import ModelSpec
def model():
    torch.manual_seed(0)
    body = [layer for _ in range(6) for layer in (nn.Conv2d(16, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU())]
    module = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *body).eval()
    return ModelSpec(module, (torch.randn(1, 3, 40, 40),), calibration=tuple((torch.randn(1, 3, 40, 40),) for _ in range(4)))
"""


def finished(journal):
    import sqlite3

    if not journal.exists():
        return []
    with sqlite3.connect(f"file:{journal}?mode=ro", uri=True) as db:
        try:
            return [json.loads(r)["change"] for (r,) in db.execute("SELECT record FROM trial ORDER BY position")]
        except sqlite3.Error:
            return []


def test_a_killed_run_goes_on_without_repeating_finished_trials(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    arguments = [sys.executable, "-m", "npulift", "tune", f"{tmp_path / 'net.py'}:model", "--out", str(tmp_path / "out"), "--budget", "60s", "--json",
                 str(tmp_path / "result.json")]
    first = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = tmp_path / ".out.work" / "journal.sqlite"
    deadline = time.time() + 240
    while len(finished(journal)) < 2 and first.poll() is None and time.time() < deadline:
        time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = finished(journal)
    assert len(before) >= 2
    subprocess.run(arguments, check=True, capture_output=True, timeout=400)
    result = json.loads((tmp_path / "result.json").read_text())
    changes = [t["change"] for t in result["trials"]]
    assert changes[: len(before)] == before
    assert len(changes) == len(set(changes))
    assert any("Resumed" in note for note in result["notes"])


def test_ctrl_c_ends_in_one_sentence_and_keeps_the_journal(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    run = subprocess.Popen(
        [sys.executable, "-m", "npulift", "tune", f"{tmp_path / 'net.py'}:model", "--out", str(tmp_path / "out"), "--budget", "60s"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    journal = tmp_path / ".out.work" / "journal.sqlite"
    while len(finished(journal)) < 1 and run.poll() is None:
        time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    _out, said = run.communicate(timeout=60)
    assert (run.returncode, "Traceback" in said, finished(journal) != []) == (130, False, True)
