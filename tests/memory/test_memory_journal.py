"""A memory that lives in a file: nothing that was acknowledged is lost, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import torch

from hopfy import AssociativeMemory


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.hopfy"


def content(memory):
    return {
        one: (pattern, value)
        for chunk in memory.chunks()
        for one, pattern, value in zip(
            chunk.ids.tolist(),
            chunk.patterns.tolist(),
            [None] * len(chunk.ids) if chunk.values is None else list(chunk.values),
            strict=True,
        )
    }


def test_everything_is_there_after_closing_and_opening(path):
    with AssociativeMemory.open(path, omega="1.5-entmax", beta=3.0, compare="dot") as memory:
        memory.add(torch.eye(3), values=["a", "b", "c"])
        memory.remove([1])
        memory.update([0], values="z")
        with memory.batch():
            memory.add(2 * torch.eye(3), values="all", ids=[10, 11, 12])
            memory.remove([11])
        with pytest.raises(KeyError), memory.batch():  # noqa: PT012
            memory.add(torch.ones(1, 3), values="never")
            memory.remove([99])
        memory.add(torch.ones(1, 3), values="late")
        expected, size = content(memory), os.path.getsize(path)
        assert "in its journal" in memory.describe()
    with AssociativeMemory.open(path) as again:
        assert content(again) == expected
        assert repr(again._settings.omega) == "Tsallis(alpha=1.5)"
        assert os.path.getsize(path) == size  # nothing was rewritten
        again.compact()
        assert os.path.getsize(again._writer.journal.path) < 200
        assert content(again) == expected
        assert content(AssociativeMemory.load(path)) == expected
        again.add(torch.zeros(1, 3), values="after")
        again.fit(torch.eye(2), ["x", "y"])
    with AssociativeMemory.open(path) as last:
        assert list(last.predict(torch.eye(2))) == ["x", "y"]


def test_an_addition_writes_as_much_as_it_adds(path):
    with AssociativeMemory.open(path, beta=1.0) as memory:
        memory.add(torch.randn(5000, 64))
        memory.compact()
        before = memory._writer.journal.size
        memory.add(torch.randn(3, 64))
        assert memory._writer.journal.size - before < 3 * 64 * 4 + 600


def test_a_second_writer_is_refused(path):
    with AssociativeMemory.open(path) as memory:
        memory.add(torch.eye(2))
        with pytest.raises(BlockingIOError, match="only writer"):
            AssociativeMemory.open(path)
        script = f"import hopfy; hopfy.AssociativeMemory.open({str(path)!r})"
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        assert "only writer" in run.stderr
        memory.add(torch.ones(1, 2))
    with AssociativeMemory.open(path) as again:
        assert len(again) == 3


@pytest.mark.parametrize("cut", [1, 7, 40, 60])
def test_an_interrupted_record_is_dropped_and_the_rest_kept(path, cut):
    with AssociativeMemory.open(path) as memory:
        memory.add(torch.eye(2))
        kept = memory._writer.journal.size
        memory.add(torch.ones(1, 2))
        journal = memory._writer.journal.path
    os.truncate(journal, os.path.getsize(journal) - cut)
    with pytest.warns(RuntimeWarning, match="never|interrupted"):
        again = AssociativeMemory.open(path)
    assert len(again) == 2
    assert again._writer.journal.size == kept
    assert again.add(torch.ones(1, 2)).tolist() == [2]
    again.close()


def test_damage_in_the_middle_is_an_error_that_loses_nothing(path):
    with AssociativeMemory.open(path) as memory:
        memory.add(torch.eye(2))
        middle = memory._writer.journal.size
        memory.add(torch.ones(3, 2))
        memory.add(torch.ones(3, 2))
        journal = memory._writer.journal.path
    raw = bytearray(journal.read_bytes())
    for place in (3, middle + 2, middle + 20, middle + 60):
        spoiled = bytearray(raw)
        spoiled[place] ^= 0xFF
        journal.write_bytes(spoiled)
        with pytest.raises(ValueError, match=r"expected .* to be a sound journal"):
            AssociativeMemory.open(path)
        assert journal.read_bytes() == spoiled
    journal.write_bytes(raw)
    with AssociativeMemory.open(path) as again:
        assert len(again) == 8


def test_a_crash_between_the_two_steps_of_a_compaction(path, monkeypatch):
    memory = AssociativeMemory.open(path)
    memory.add(torch.eye(2))
    journal = memory._writer.journal

    def crash(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(journal, "restart", crash)
    with pytest.raises(KeyboardInterrupt):
        memory.compact()
    journal.close()
    with AssociativeMemory.open(path) as again:
        assert len(again) == 2  # and not four
        again.add(torch.ones(1, 2))
    with AssociativeMemory.open(path) as once_more:
        assert len(once_more) == 3


def test_a_journal_of_a_newer_file_is_refused(path):
    with AssociativeMemory.open(path) as memory:
        memory.add(torch.eye(2))
        old = path.read_bytes()
        memory.compact()
        memory.add(torch.ones(1, 2))
    path.write_bytes(old)
    with pytest.raises(ValueError, match="continues generation 2"):
        AssociativeMemory.open(path)


def test_a_full_disk_changes_nothing(path, monkeypatch):
    memory = AssociativeMemory.open(path)
    memory.add(torch.eye(2))
    fsync = os.fsync

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        memory.add(torch.ones(1, 2))
    monkeypatch.setattr(os, "fsync", fsync)
    assert len(memory) == 2
    memory.add(3 * torch.ones(1, 2))
    expected = content(memory)
    memory.close()
    with AssociativeMemory.open(path) as again:
        assert content(again) == expected


def replace_in_a_batch(memory):
    with memory.batch():
        memory.remove([0])
        memory.add(torch.randn(50, 4), values="other")


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on file sizes")
def test_a_disk_that_is_really_full_loses_nothing(path):
    import resource

    memory = AssociativeMemory.open(path, beta=1.0)
    memory.add(torch.eye(4), values=["a", "b", "c", "d"])
    before, size = content(memory), os.path.getsize(str(path) + ".journal")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            memory.add(torch.randn(50, 4), values="new")
        with pytest.raises(OSError, match="File too large"):
            replace_in_a_batch(memory)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        with pytest.raises(OSError, match="File too large"):
            memory.compact()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert content(memory) == before
    assert os.path.getsize(str(path) + ".journal") == size
    memory.add(torch.ones(1, 4), values="later")  # there is room again
    expected = content(memory)
    memory.close()
    with AssociativeMemory.open(path) as again:
        assert content(again) == expected
        again.compact()
    assert content(AssociativeMemory.load(path)) == expected


def test_load_says_that_it_does_not_read_the_journal(path):
    with AssociativeMemory.open(path) as memory:
        memory.add(torch.eye(3))
        memory.compact()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(AssociativeMemory.load(path)) == 3
        memory.add(torch.ones(1, 3))
        with pytest.warns(RuntimeWarning, match=r"holds changes.*AssociativeMemory.open"):
            assert len(AssociativeMemory.load(path)) == 3
    with AssociativeMemory.open(path) as again:
        assert len(again) == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_cannot_write_into_the_journal_of_its_parent(path):
    script = """
import os, sys, torch, hopfy
memory = hopfy.AssociativeMemory.open(sys.argv[1], beta=1.0)
memory.add(torch.eye(3))
child = os.fork()
if not child:
    for change in (lambda: memory.add(torch.ones(1, 3)), lambda: memory.remove([0]), memory.compact):
        try:
            change()
        except BlockingIOError as error:
            assert "forked" in str(error) and len(memory) == 3, error
        else:
            os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
memory.add(torch.ones(2, 3))
"""
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    with AssociativeMemory.open(path) as memory:
        assert len(memory) == 5


# One process imports hopfy; each line that it gets starts a child that writes until it is killed.
SCRIPT = """
import os, sys, torch, hopfy
torch.set_num_threads(1)

def write(path, attempt):
    memory = hopfy.AssociativeMemory.open(path, beta=1.0)
    print("ready", os.getpid(), flush=True)
    for number in range(100_000):
        value = f"v{attempt}.{number}"
        ids = memory.add(torch.full((2, 8), float(number)), values=value)
        print(f"+{ids[0]} {value}", flush=True)
        if number % 7 == 6:
            memory.compact()
        if number % 5 == 4:
            memory.remove(ids[:1])
            print(f"-{ids[0]}", flush=True)
        if number % 11 == 10:
            with memory.batch():
                memory.update(ids[1:], values=value + "!")
                both = memory.add(torch.zeros(1, 8), values="batch." + value)
            print(f"+{both[0]} batch.{value}", flush=True)

for line in sys.stdin:
    child = os.fork()
    if not child:
        write(sys.argv[1], line.strip())
        os._exit(1)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


def test_killing_at_any_moment_loses_nothing_that_was_acknowledged(path):
    generator = np.random.default_rng(0)
    there: dict[int, str] = {}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    acknowledged = 0
    with subprocess.Popen(command, **pipes) as run:
        for attempt in range(15):
            print(attempt, file=run.stdin, flush=True)
            child = int(run.stdout.readline().split()[1])
            time.sleep(0.15 * generator.random())
            os.kill(child, signal.SIGKILL)
            lines = list(iter(lambda: run.stdout.readline().strip(), "dead"))
            acknowledged += len(lines)
            for line in lines:
                one, *value = line[1:].split()
                if line.startswith("+"):
                    there[int(one)] = value[0]
                else:
                    del there[int(one)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                memory = AssociativeMemory.open(path)
            found = {one: value for one, (_, value) in content(memory).items()}
            memory.close()
            missing = [one for one, value in there.items() if found.get(one) != value]
            # The last line may announce a pattern whose removal was on its way.
            assert missing in ([], [max(there, default=None)])
            for one in missing:
                del there[one]
            # A batch is there whole or not at all.
            updated = {value[:-1] for value in found.values() if value.endswith("!")}
            assert updated == {value[6:] for value in found.values() if value[:6] == "batch."}
        run.stdin.close()
    assert acknowledged > 15
