"""A file that one rank writes and another reads with no barrier between is told of; others not."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from notebook_accel import notebook_launcher
from notebook_accel.ranks.files import NUM_BYTES, NUM_KEPT, Files


def two_ranks() -> tuple[Files, Files]:
    room = memoryview(bytearray(2 * NUM_BYTES))
    return Files(room, 0, 2), Files(room, 1, 2)


def test_a_rank_sees_what_another_wrote_after_a_moment() -> None:
    first, second = two_ranks()
    assert not second.is_news(0)
    before = time.monotonic_ns()
    first.wrote("some/file")
    assert second.is_news(before - 1) and not second.is_news(time.monotonic_ns())
    found = second.writer(Path("some") / "file", before - 1)
    assert found is not None and found[0] == 0 and before <= found[1] <= time.monotonic_ns()
    assert second.writer(os.path.abspath("some/file"), 0) == found
    assert second.writer("some/other", 0) is None
    assert second.writer("some/file", found[1]) is None, "a barrier came after"
    assert not first.is_news(0), "one's own files are no news"
    second.wrote(3)  # a descriptor has no name
    assert not first.is_news(0) and first.writer(3, 0) is None


def test_a_file_that_a_rank_wrote_itself_is_its_own() -> None:
    first, second = two_ranks()
    first.wrote("file")
    second.wrote("file")
    assert second.writer("file", 0) is None


def test_the_newest_files_are_kept() -> None:
    first, second = two_ranks()
    for number in range(NUM_KEPT + 3):
        first.wrote(f"file {number}")
    assert second.writer("file 2", 0) is None
    assert second.writer("file 3", 0) is not None
    assert second.writer(f"file {NUM_KEPT + 2}", 0) is not None


FORMS = ("open", "torch", "rename", "numpy")
FINE = ("barrier", "own", "log", "library", "off", "loader", "gathered", "first")


def writes_and_reads(form: str, folder: str) -> list[str]:
    """Rank 0 writes and rank 1 reads; gives the warnings of this rank."""
    import json
    import warnings

    import numpy
    import torch
    from torch.utils.data import DataLoader

    from notebook_accel import Accelerator, GuardRail, without_guards
    from tests.ranks import test_files

    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    accelerator.wait_for_everyone()
    left = Path(folder) / "rank 1 has left the barrier"
    if rank == 1:
        left.touch()
    while not left.exists():
        time.sleep(0.01)
    own = form == "own"
    path = Path(folder) / (f"{form}.pt" if form in ("torch", "own") else f"{form}.npy")
    done = Path(folder) / f"{form}.done"

    def write() -> None:
        if form in ("torch", "own"):
            torch.save({"a": rank}, path)
        elif form == "rename":
            Path(folder, "part").write_text("[1]")
            os.replace(Path(folder, "part"), path)
        elif form == "numpy":
            numpy.save(path, numpy.ones(1))
        else:
            with open(path, "a" if form == "log" else "w") as file:
                file.write("[1]")

    def read() -> None:
        if form in ("torch", "own"):
            torch.load(path)
        elif form == "numpy":
            numpy.load(path)
        elif form == "library":
            test_files.someone_elses_read(path)
        elif form == "loader":
            list(DataLoader([path], num_workers=1, collate_fn=lambda paths: paths[0].read_text()))
        elif form == "rename":
            path.read_text()
        else:
            with open(path) as file:
                json.load(file)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", GuardRail)
        if form == "first":
            with accelerator.main_process_first():
                if rank == 0:
                    write()
                read()
        elif rank == 0:
            write()
            os.close(os.open(done, os.O_CREAT))
        while not os.path.exists(done) and form != "first":
            time.sleep(0.01)
        if own and rank == 1:  # after the other one: torch.save writes in several steps
            write()
        if form == "barrier":
            accelerator.wait_for_everyone()
        elif form == "gathered":
            accelerator.gather(torch.ones(1))
        if rank == 1 and form == "off":
            with without_guards("file-race"):
                read()
        elif rank == 1:
            read()
    return [str(one.message) for one in said]


def someone_elses_read(path: Any) -> str:
    """A read by a library, which may well have a lock of its own."""
    code = compile("def load(path):\n    return open(path).read()\n", LIBRARY, "exec")
    inside: dict[str, Any] = {}
    exec(code, inside)
    return str(inside["load"](path))


LIBRARY = f"{os.sep}x{os.sep}site-packages{os.sep}hub{os.sep}cache.py"


def run(form: str, folder: Path) -> list[list[str]]:
    found = notebook_launcher(writes_and_reads, (form, str(folder)), 2, device="cpu")
    return list(found.values)


@pytest.mark.parametrize("form", FORMS)
def test_a_read_with_no_barrier_since_the_write_is_told_of(form: str, tmp_path: Path) -> None:
    first, second = run(form, tmp_path)
    assert first == []
    assert len(second) == 1, second
    assert second[0].startswith(f"rank 1 reads {str(tmp_path / form)!r}"[:-1])
    assert "which rank 0 wrote" in second[0] and "with no barrier between" in second[0]
    assert "test_files.py" in second[0].splitlines()[0]
    assert "another time it is not there yet, or half written" in second[0]
    assert "call accelerator.wait_for_everyone() on all ranks" in second[0]


@pytest.mark.parametrize("form", FINE)
def test_what_is_in_order_is_not_told_of(form: str, tmp_path: Path) -> None:
    assert run(form, tmp_path) == [[], []]
