"""npulift rewrite, as a user runs it."""

import json

SOURCE = '''import torch


class Model(torch.nn.Module):
    """Early exit."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        # depth decides
        for layer in self.layers:
            x = torch.relu(layer(x))
            if x.mean() < 0.01:  # small enough
                return x
        return x


def model():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(2, 8),)
'''


def test_the_diff_is_shown_and_the_file_left_alone(command, tmp_path):
    file = tmp_path / "early.py"
    file.write_text(SOURCE)
    done = command("rewrite", f"{file}:model", "--json", tmp_path / "out.json")
    data = json.loads((tmp_path / "out.json").read_text())
    assert (done.returncode, file.read_text() == SOURCE, data["rewrites"][0]["verified"]["max_abs_error"], data["written"]) == (0, True, 0.0, [])


def test_write_changes_the_file_once_and_keeps_comments(command, tmp_path):
    file = tmp_path / "early.py"
    file.write_text(SOURCE)
    command("rewrite", f"{file}:model", "--write", "--quiet")
    first = file.read_text()
    command("rewrite", f"{file}:model", "--write", "--quiet")
    assert ("return x\n        return x" in first, "# depth decides" in first, file.read_text() == first) == (False, True, True)


def test_check_reports_the_line_and_the_verified_form(command, tmp_path):
    file = tmp_path / "early.py"
    file.write_text(SOURCE)
    command("check", f"{file}:model", "--target", "openvino", "--json", tmp_path / "out.json")
    found = [f for f in json.loads((tmp_path / "out.json").read_text())["findings"] if f["code"] == "NPU221"]
    line = next(i for i, s in enumerate(SOURCE.splitlines(), 1) if "x.mean() < 0.01" in s)
    assert [(f["line"], f["details"]["rewrite"]["exports"]) for f in found] == [(line, True)]


def test_tune_compiles_the_verified_form_of_an_early_exit(command, tmp_path):
    file = tmp_path / "early.py"
    file.write_text(SOURCE)
    done = command("tune", f"{file}:model", "--target", "onnxruntime", "--budget", "1s", "--out", tmp_path / "bundle", "--json", tmp_path / "out.json", "--quiet")
    data = json.loads((tmp_path / "out.json").read_text())
    assert (done.returncode, data["ok"], data["tuned"] is not None) == (0, True, True)
