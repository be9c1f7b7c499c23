"""What all tests share: the examples on the path, catalogues compiled, no network, one language."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
os.environ["LANGUAGE"] = "en"
sys.path.insert(0, str(ROOT / "examples"))


def pytest_sessionstart(session):
    spec = importlib.util.spec_from_file_location("messages_tool", ROOT / "tools" / "messages.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    tool.compile_all()


@pytest.fixture(autouse=True)
def _english():
    from npulift import messages

    messages.set_language("en")
    yield
    messages.set_language("en")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture
def command():
    """Runs `npulift ...` in a process of its own; returns the completed process."""
    import subprocess

    def run(*arguments, timeout=300, env=None, **more):
        return subprocess.run(
            [sys.executable, "-m", "npulift", *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
            env={**os.environ, **(env or {})}, check=False, **more,
        )

    return run
