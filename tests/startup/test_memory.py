"""Freed memory stays with the process, unless the user has settings of their own."""

import os
import subprocess
import sys

import pytest

from fedem_lightning.settings.startup import keep_freed_memory

PROGRAM = """
import resource
from fedem_lightning.settings.startup import keep_freed_memory
kept = keep_freed_memory()
import torch
torch.set_num_threads(1)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(2**24)  # 64 MB: 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(kept, faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is the C library of Linux")
def test_freed_memory_is_used_again() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120, env=environment
    )
    kept, faults = done.stdout.split()
    if kept == "False":
        pytest.skip("this C library has no mallopt")
    assert int(faults) < 16_384  # one tensor's pages; 20 tensors' without it


def test_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert not keep_freed_memory()
