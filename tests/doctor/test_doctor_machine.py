"""The environment checks on made-up machines and on this one, the bundle, symptoms, explain and run."""

import json
import os
import subprocess
import sys
import zipfile

import pytest

import npulift
from npulift.doctor import bundling, environment
from npulift.doctor.checks import ascend, variables
from npulift.doctor.symptoms import TREES
from npulift.findings import Severity


def machine(tmp_path, environ=None, files=()):
    for name, text in files:
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return environment.Machine(root=tmp_path, environ=environ or {}, smoke=False)


def found(checks):
    return {c.name: c for c in checks}


def test_no_ascend_is_no_error(tmp_path):
    assert found(ascend.check(machine(tmp_path)))["ascend"].severity is None


TOOLKIT = ("/usr/local/Ascend/ascend-toolkit/latest/version.cfg", "toolkit_running_version=[7.3.0.1.231:8.0.RC2]\n")
DRIVER = ("/usr/local/Ascend/driver/version.info", "Version=24.1.rc2\n")


def test_cann_that_is_not_sourced_gives_the_exact_line(tmp_path):
    files = [TOOLKIT, DRIVER, ("/usr/local/Ascend/ascend-toolkit/set_env.sh", "")]
    check = found(ascend.check(machine(tmp_path, files=files)))["cann"]
    assert check.severity is Severity.ERROR
    assert check.fix == "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
    assert check.details["version"] == "8.0.RC2"


def test_missing_nodes_and_mounts_are_named(tmp_path):
    environ = {"ASCEND_HOME_PATH": "/usr/local/Ascend/ascend-toolkit/latest", "ASCEND_RT_VISIBLE_DEVICES": "0,9"}
    checks = found(ascend.check(machine(tmp_path, environ, [TOOLKIT, DRIVER, ("/dev/davinci0", ""), ("/dev/davinci_manager", ""), ("/dev/hisi_hdc", "")])))
    assert "/dev/devmm_svm" in checks["ascend-mounts"].message
    assert "9" in checks["ascend-visible-devices"].message
    assert "24.1.rc2" in checks["ascend-driver"].value


@pytest.mark.parametrize(("environ", "name"), [
    ({"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:32"}, "allocator-options"),
    ({"ASCEND_LAUNCH_BLOCKING": "1"}, "launch-blocking"),
    ({"HCCL_IF_BASE_PORT": "70000"}, "hccl-base-port"),
    ({"HCCL_CONNECT_TIMEOUT": "600", "HCCL_EXEC_TIMEOUT": "60"}, "hccl-timeouts"),
    ({"RANK_TABLE_FILE": "/nowhere.json"}, "rank-table"),
    ({"ASCEND_GLOBAL_LOG_LEVEL": "0"}, "log-level"),
    ({"INF_NAN_MODE_ENABLE": "0"}, "saturation-mode"),
])
def test_contradictions_are_named(tmp_path, environ, name):
    assert found(variables.check(machine(tmp_path, environ)))[name].severity is not None


def test_an_interface_that_does_not_exist(tmp_path):
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    assert "hccl-socket-ifname" in found(variables.check(machine(tmp_path, {"HCCL_SOCKET_IFNAME": "ib0"})))
    assert "hccl-socket-ifname" not in found(variables.check(machine(tmp_path, {"HCCL_SOCKET_IFNAME": "eth"})))


def test_every_variable_is_explained(tmp_path):
    checks = found(variables.check(machine(tmp_path, {"TASK_QUEUE_ENABLE": "2"})))
    assert "queued" in checks["variable-TASK_QUEUE_ENABLE"].value


def test_a_probe_that_crashes_or_hangs_is_reported():
    assert environment.probe("import os; os.abort()", dict(os.environ))["ok"] is False
    assert environment.probe("import time; time.sleep(60)", dict(os.environ), seconds=0.5)["ok"] is False
    assert environment.probe("print('{\"a\": 1}')", dict(os.environ)) == {"ok": True, "a": 1}


def test_this_machine_with_a_smoke_operation_for_each_device(command):
    done = command("doctor", "--json", "-")
    result = json.loads(done.stdout)
    names = {c["name"]: c["state"] for c in result["checks"]}
    assert names["python"] == names["import-torch"] == names["smoke-openvino-CPU"] == names["smoke-CPUExecutionProvider"] == "ok"
    assert done.returncode == (1 if "error" in names.values() else 0)


def test_environment_with_python_alone(root):
    done = subprocess.run([sys.executable, "-S", "-I", str(root / "src/npulift/doctor/__main__.py"), "--json", "-", "--no-smoke"], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["checks"], done.stderr


SECRETS = {
    "hf_abcdefghijklmnopqrstuvwx": "token", "s3cr3t-Passw0rd": "password=s3cr3t-Passw0rd", "alice": "/home/alice/model", "10.20.30.40": "connect 10.20.30.40:29500",
    "node17": "host=node17 ready", "bob@example.com": "mail bob@example.com", "eyJhbGciOiJIUzI1NiIsInR5": "Authorization: Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6.abcdefghijkl.mnopq",
    "u5er:pw": "https://u5er:pw@git.example/x.git", "02:42:ac:11:00:02": "mac 02:42:ac:11:00:02", "fe80::1ff:fe23:4567:890a": "inet6 fe80::1ff:fe23:4567:890a",
}


def test_secrets_hosts_addresses_and_names_are_taken_out():
    text = "\n".join(("HF_TOKEN=" + k) if v == "token" else v for k, v in SECRETS.items()) + "\nEI0006: Getting socket times out\n127.0.0.1 stays\n"
    clean, removed = bundling.redact(text)
    assert [k for k in SECRETS if k in clean] == []
    assert "EI0006: Getting socket times out" in clean
    assert "127.0.0.1 stays" in clean
    assert sum(removed.values()) >= len(SECRETS)


def test_the_bundle_is_listed_and_holds_nothing_secret(command, tmp_path):
    (tmp_path / "x.log").write_text("password=hunter22x\nEI0006: Getting socket times out\n")
    done = command("doctor", tmp_path / "x.log", "--bundle", tmp_path / "b.zip", "--yes", "--quiet")
    assert "logs/001-x.log" in done.stderr
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        assert {"report.json", "environment.json", "README.txt"} <= set(archive.namelist())
        assert b"hunter22x" not in b"".join(archive.read(n) for n in archive.namelist())


def test_explain_gives_the_cause_of_an_exception():
    assert "fork" in npulift.explain(RuntimeError("Cannot re-initialize NPU in forked subprocess. To use NPU"))
    assert npulift.explain(ValueError("x")) == ""


def test_run_explains_under_the_traceback_and_keeps_the_script_as_it_is(command, tmp_path):
    script = tmp_path / "s.py"
    script.write_text("import os, sys\nprint(sys.argv[1:], __name__, os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD'))\nraise RuntimeError('NPU function error: x, error code is 107002')\n")
    done = command("run", script, "--flag", "-h", env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"})
    assert done.stdout == "['--flag', '-h'] __main__ 1\n"
    assert done.stderr.index("Traceback") < done.stderr.index("npulift: ")
    assert "runpy" not in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(("body", "code"), [("raise SystemExit(3)", 3), ("pass", 0)])
def test_run_keeps_the_exit_code(command, tmp_path, body, code):
    (tmp_path / "s.py").write_text(body)
    assert command("run", tmp_path / "s.py").returncode == code


def test_run_without_a_script(command):
    assert command("run", "nowhere.py").returncode == 2


def test_a_symptom_stops_at_the_confirmed_cause(command, tmp_path):
    (tmp_path / "m.py").write_text(
        "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n        return x / x.abs().max().item()\n"
        "def model():\n    return M().eval(), (torch.randn(2, 4),)\n")
    done = command("doctor", "--symptom", "slow", f"{tmp_path}/m.py:model", "--json", "-")
    result = json.loads(done.stdout)
    assert result["steps"][-1]["confirmed"]
    assert result["findings"][0]["line"] == 4


def test_a_script_gets_the_steps_of_a_script_and_those_that_wait_say_for_what(command, tmp_path):
    (tmp_path / "s.py").write_text("print(1)\n")
    done = command("doctor", "--symptom", "nan", tmp_path / "s.py", "--json", "-")
    states = {s["command"]: s for s in json.loads(done.stdout)["steps"]}
    assert states["guard"]["state"] == "waits"
    assert states["guard"]["evidence"]


def test_every_symptom_has_a_tree():
    assert set(TREES) == {"slow", "wrong", "oom", "nan", "scaling", "init"}


def test_a_symptom_of_nothing(command):
    assert command("doctor", "--symptom", "slow", "nowhere.py:model").returncode == 2
