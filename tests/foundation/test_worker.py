"""Workers: what a caller gets when vendor code returns, raises, aborts, hangs, or eats memory. Real processes, really killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from npulift.worker import RemoteError, Worker, WorkerDied, WorkerOutOfMemory, WorkerTimeout


@pytest.fixture
def worker():
    with Worker(time_limit=30) as w:
        yield w


def test_a_call_returns_what_the_function_returns(worker):
    assert worker.call("math:sqrt", 81.0) == 9.0


def test_an_exception_comes_back_with_its_kind_and_the_worker_lives_on(worker):
    with pytest.raises(RemoteError) as caught:
        worker.call("math:sqrt", -1.0)
    assert (caught.value.kind, worker.call("math:sqrt", 4.0)) == ("ValueError", 2.0)


def test_an_abort_names_the_signal(worker):
    with pytest.raises(WorkerDied, match="SIGABRT"):
        worker.call("os:abort")


def test_an_exit_in_vendor_code_is_an_exception_not_the_end(worker):
    with pytest.raises(RemoteError) as caught:
        worker.call("sys:exit", 2)
    assert caught.value.kind == "SystemExit"


def test_a_hang_is_ended_after_the_limit(worker):
    with pytest.raises(WorkerTimeout):
        worker.call("time:sleep", 60, time_limit=0.5)
    assert not worker.alive


def test_memory_over_the_limit_ends_the_call():
    with Worker(memory_limit=200 * 2**20, time_limit=60) as greedy, pytest.raises(WorkerOutOfMemory):
        greedy.call("builtins:exec", "held = []\nimport time\nfor _ in range(40):\n    held.append(bytearray(b'x') * 2**25)\n    time.sleep(0.1)")


def test_what_the_vendor_printed_is_in_the_log(worker):
    worker.call("builtins:print", "E tiling failed: code 42", flush=True)
    assert "code 42" in worker.log()


def test_a_result_that_cannot_be_pickled_is_an_error_not_a_hang(worker):
    with pytest.raises(RemoteError):
        worker.call("threading:Lock")


def test_workers_die_with_a_parent_that_was_killed():
    code = "import time; from npulift.worker import Worker; w = Worker(); print(w.call('os:getpid'), flush=True); w.call('time:sleep', 60)"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _attempt in range(100):
        if not _running(child):
            break
        time.sleep(0.1)
    assert not _running(child)


def _running(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
