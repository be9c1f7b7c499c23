"""torch_npu in its own folder, and hollow CANN for it: bad input and the right pairs of versions."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest

from npulift.ascend import chips, environment, hollow, versions, wheel
from npulift.errors import NpuliftError


def write_wheel(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def metadata(version):
    return {"torch_npu/__init__.py": "", f"torch_npu-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {version}\n"}


def test_a_torch_npu_for_another_torch_names_the_pair_that_fits(tmp_path, monkeypatch):
    monkeypatch.setenv("NPULIFT_CACHE", str(tmp_path))
    file = write_wheel(tmp_path / "w.whl", metadata("2.6.0.post3"))
    with pytest.raises(NpuliftError, match=r"torch==2\.6\.0 .* torch-npu==2\.13\.0"):
        wheel.install(wheel=file)


@pytest.mark.parametrize("name", ["../outside.py", "/tmp/outside.py", "torch_npu/../../outside.py"])
def test_an_archive_that_reaches_outside_is_not_unpacked(tmp_path, monkeypatch, name):
    monkeypatch.setenv("NPULIFT_CACHE", str(tmp_path / "cache"))
    file = write_wheel(tmp_path / "w.whl", {**metadata("2.13.0"), name: "x"})
    with pytest.raises(NpuliftError, match="outside its folder"):
        wheel.install(wheel=file)
    assert not list(tmp_path.rglob("outside.py"))


def test_half_a_wheel_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("NPULIFT_CACHE", str(tmp_path / "cache"))
    file = write_wheel(tmp_path / "w.whl", metadata("2.13.0"))
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(NpuliftError, match="not a whole wheel"):
        wheel.install(wheel=file)
    assert not list((tmp_path / "cache").rglob("torch_npu"))


def test_without_a_compiler_the_message_says_what_to_install(tmp_path, monkeypatch):
    torch_npu = wheel.ensure()
    monkeypatch.setenv("NPULIFT_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NpuliftError, match="gcc is not installed"):
        hollow.build(torch_npu)


def test_every_launch_function_that_the_wheel_names_gets_both_halves():
    names = hollow.symbols(wheel.ensure() / "torch_npu")
    halves = [n for n in names if n.endswith("GetWorkspaceSize")]
    assert len(halves) > 700
    assert {n.removesuffix("GetWorkspaceSize") for n in halves} <= set(names)


def test_the_table_knows_the_pairs_of_the_compatibility_list():
    assert versions.torch_for("2.1.0.post17") == "2.1.0"
    assert versions.for_torch("2.6.0+cpu") == "2.6.0.post5"
    assert versions.for_torch("9.9.9") == "9.9.9"


def test_a_real_cann_is_found_and_named(tmp_path):
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libascendcl.so").touch()
    assert environment.real_cann({"ASCEND_HOME_PATH": str(tmp_path)}) == tmp_path
    assert environment.real_cann({"ASCEND_HOME_PATH": str(tmp_path), "NPULIFT_CANN": "hollow"}) is None


def test_every_chip_has_its_sources():
    assert all(c.sources and c.usable_bytes > 0 for c in chips.chips().values())


def test_import_virtual_makes_torch_npu_work_in_the_same_process():
    code = "import npulift.ascend.virtual, torch, torch_npu; print(torch.npu.get_device_name(0), torch.arange(3).npu().cpu().tolist())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**__import__("os").environ, "NPULIFT_TARGET": "ascend-910a"})
    assert done.stdout.strip() == "Ascend910A [0, 1, 2]"


def test_the_printed_environment_is_enough_for_a_shell():
    command = f'eval "$({sys.executable} -m npulift ascend env --quiet -t ascend-910b3)" && {sys.executable} -c "import torch, torch_npu; print(torch.npu.get_device_name(0))"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Ascend910B3"


def test_a_plain_import_of_torch_does_not_see_torch_npu():
    code = "import importlib.util; print(importlib.util.find_spec('torch_npu'))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "None"
