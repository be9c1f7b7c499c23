"""The command line as a user types it: exit codes, formats, languages."""

import json

import pytest

QUIET_MODEL = "import torch\ndef model(): return torch.nn.Linear(4, 4).eval(), (torch.ones(2, 4),)\n"
SYNCING = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return x / x.abs().max().item()
def model(): return Net().eval(), (torch.ones(2, 4),)
"""


@pytest.fixture
def model_file(tmp_path):
    def write(text):
        path = tmp_path / "net.py"
        path.write_text(text)
        return f"{path}:model"

    return write


def test_check_exits_with_zero_when_all_is_well(command, model_file):
    assert command("check", model_file(QUIET_MODEL), "--target", "cpu").returncode == 0


def test_fail_on_turns_a_warning_into_exit_code_one(command, model_file):
    assert command("check", model_file(SYNCING), "--target", "cpu", "--fail-on", "warning").returncode == 1


def test_sarif_puts_the_finding_on_the_users_line(command, model_file):
    done = command("check", model_file(SYNCING), "--target", "cpu", "--format", "sarif")
    results = json.loads(done.stdout)["runs"][0]["results"]
    lines = {r["locations"][0]["physicalLocation"]["region"]["startLine"] for r in results if r["ruleId"] == "NPU203"}
    assert lines == {5}


def test_json_goes_to_standard_output_and_nothing_else_does(command, model_file):
    done = command("check", model_file(QUIET_MODEL), "--target", "cpu", "--json", "-")
    assert json.loads(done.stdout)["command"] == "check"


@pytest.mark.parametrize(("arguments", "said"), [
    (("check", "nowhere.py:model"), "no file nowhere.py"),
    (("check", "nowhere.py:model", "--target", "abacus"), "There is no target abacus"),
    (("tune", "nowhere.py:model", "--budget", "soon"), "not a time"),
    (("tune", "nowhere.py:model", "--goal", "glory"), "no goal glory"),
    (("frobnicate",), "frobnicate"),
    (("check", "nowhere.py:model", "--lang", "fr"), "no catalogue"),
])
def test_a_mistake_in_the_call_exits_with_two_and_one_sentence(command, arguments, said):
    done = command(*arguments)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_help_is_in_the_language_asked_for(command):
    assert "编译" in command("--lang", "zh", "tune", "--help").stdout or "模型" in command("--lang", "zh", "tune", "--help").stdout


def test_the_environments_language_counts(command):
    assert "模型" in command("check", "--help", env={"LANGUAGE": "", "LANG": "zh_CN.UTF-8"}).stdout


def test_targets_lists_what_is_missing(command):
    done = command("targets", "--json", "-")
    entries = {t["target"]: t for t in json.loads(done.stdout)["targets"]}
    assert entries["openvino"]["ready"]


def test_explain_shows_the_page_of_a_rule(command):
    assert "read back to the host" in command("explain", "NPU203").stdout
