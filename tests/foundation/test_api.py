"""The Python API: names are functions, whatever was imported before, and importing the package pulls nothing heavy in."""

import subprocess
import sys


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def test_a_verb_is_a_function_before_and_after_its_module_is_imported():
    code = "import npulift\na = npulift.check\nimport npulift.check, npulift.tune, npulift.compile\nprint(callable(a), npulift.check is a, callable(npulift.tune), callable(npulift.compile))"
    assert python(code) == "True True True True"


def test_importing_the_package_is_light():
    assert python("import sys, npulift; print([m for m in ('torch', 'polars', 'openvino', 'typer') if m in sys.modules])") == "[]"
