"""Files: whole or not at all, sound or refused with one message, larger than memory if need be."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import hopfy
from hopfy import AssociativeMemory
from hopfy._files import tensors as tensor_file
from hopfy._files.atomic import replacing, temporary_beside
from hopfy.memory import _files
from judges.threads import together


def make(count: int = 9, **options) -> AssociativeMemory:
    memory = AssociativeMemory(**options)
    generator = torch.Generator().manual_seed(count)
    memory.add(torch.randn(count, 5, generator=generator), values=torch.arange(count))
    return memory


def same(one: AssociativeMemory, other: AssociativeMemory) -> bool:
    if len(one) != len(other) or repr(one) != repr(other):
        return False
    pairs = zip(one.chunks(4), other.chunks(4), strict=True)
    return all(torch.equal(a, b) for left, right in pairs for a, b in zip(left, right, strict=True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "patterns.hopfy"


# ---------------------------------------------------------------------- round trips


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"omega": "1.5-entmax", "compare": "dot"},
        {"omega": "softmax", "beta": 3.5},
        {"omega": hopfy.Norm(float("inf")), "beta": 0.1},
        {"omega": hopfy.Tsallis(4 / 3)},
    ],
)
def test_what_is_saved_is_what_is_loaded(path, options, mmap):
    memory = make(**options)
    memory.remove([3])
    queries = torch.randn(6, 5)
    before = memory.recall(queries)
    memory.save(path)
    again = AssociativeMemory.load(path, mmap=mmap)
    assert same(memory, again)
    assert again.beta == memory.beta
    after = again.recall(queries)
    for field in ("ids", "values", "certified", "size"):
        assert torch.equal(getattr(before, field), getattr(after, field))
    # A removed row keeps its place in the sums of softmax until it is saved: their rounding differs.
    close = 1e-6 if options.get("omega") == "softmax" else 0.0
    torch.testing.assert_close(before.patterns, after.patterns, rtol=close, atol=close)
    again.verify()
    assert os.listdir(path.parent) == [path.name]


def test_a_loaded_memory_goes_on_counting(path):
    memory = make()
    memory.remove([8])
    memory.save(path)
    again = AssociativeMemory.load(path)
    assert again.add(torch.ones(1, 5), values=[0]).tolist() == [9]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.bfloat16])
def test_values_of_any_dtype_are_saved(path, dtype):
    memory = AssociativeMemory()
    values = torch.arange(3 * 7).reshape(3, 7).remainder(2).to(dtype)
    memory.add(torch.eye(3, dtype=torch.float64), values)
    memory.save(path)
    for mmap in (False, True):
        answer = AssociativeMemory.load(path, mmap=mmap).recall(torch.eye(3))
        assert answer.values.dtype is dtype
        assert torch.equal(answer.values, values)


def test_values_that_no_file_can_hold_are_one_message(path):
    memory = AssociativeMemory()
    memory.add(torch.eye(3), torch.arange(3).to(torch.float8_e4m3fn))
    with pytest.raises(TypeError, match="expected values of a dtype among"):
        memory.save(path)
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("emptied", [False, True])
def test_an_empty_memory_can_be_saved(path, emptied):
    memory = AssociativeMemory("5-normmax", beta=2.0)
    if emptied:
        memory.add(torch.eye(3))
        memory.remove([0, 1, 2])
    memory.save(path)
    for mmap in (False, True):
        again = AssociativeMemory.load(path, mmap=mmap)
        assert len(again) == 0
        assert repr(again) == repr(memory)
    again = AssociativeMemory.load(path)
    assert again.add(torch.eye(3)).tolist() == ([3, 4, 5] if emptied else [0, 1, 2])


def test_the_file_is_plain_safetensors(path):
    memory = make(compare="dot")
    memory.save(path)
    tensors = safetensors.torch.load_file(path)
    assert torch.equal(tensors["rows"], next(memory.chunks()).patterns)
    assert torch.equal(tensors["ids"], memory.ids)
    with safetensors.safe_open(path, "pt") as file:
        described = json.loads(file.metadata()["settings"])
    assert described["omega"] == {"family": "entmax", "alpha": 2.0}
    assert described["beta"] == "auto"


def test_separations_are_kept_and_not_computed_again(path, monkeypatch):
    memory = make()
    beta = memory.beta
    memory.save(path)

    def forbidden(*_):
        raise RuntimeError("computed again")

    monkeypatch.setattr(hopfy.memory._separations.Separations, "extended", forbidden)
    assert AssociativeMemory.load(path).beta == beta
    assert AssociativeMemory.load(path, mmap=True).beta == beta


def test_an_omega_that_no_file_can_describe_is_refused_before_writing(path):
    class Own(hopfy.Tsallis):
        """Without a family of its own."""

    memory = AssociativeMemory(Own(1.5), beta=1.0)
    memory.add(torch.eye(2))
    with pytest.raises(TypeError, match="that a file can describe"):
        memory.save(path)
    assert os.listdir(path.parent) == []


# ---------------------------------------------------------------------- memory maps


def test_a_mapped_memory_cannot_change(path):
    make().save(path)
    memory = AssociativeMemory.load(path, mmap=True)
    with pytest.raises(ValueError, match="load it with mmap=False"):
        memory.add(torch.ones(1, 5), values=[1])
    with pytest.raises(ValueError, match="load it with mmap=False"):
        memory.remove([0])
    memory.save(path)  # over its own file: the old map stays what it was
    assert same(memory, AssociativeMemory.load(path))
    memory.fit(torch.eye(2))
    memory.add(torch.ones(1, 2))
    assert len(memory) == 3


def test_patterns_that_never_were_in_memory(path, monkeypatch):
    monkeypatch.setattr(_files, "_ROWS", 16)
    raw = np.lib.format.open_memmap(path.with_suffix(".npy"), "w+", np.float32, (100, 6))
    raw[:] = np.random.default_rng(0).normal(size=raw.shape) * np.linspace(0.1, 3, 100)[:, None]
    raw.flush()
    raw = np.load(path.with_suffix(".npy"), mmap_mode="r")
    for compare in ("distance", "dot"):
        mapped = AssociativeMemory.create(
            path, raw, values=np.arange(100), beta=50.0, compare=compare
        )
        held = AssociativeMemory(beta=50.0, compare=compare)
        held.add(np.array(raw), np.arange(100))
        mapped.verify()
        assert same(mapped, held)
        cues = np.array(raw[:20]) + 0.01
        assert mapped.recall(cues).ids.tolist() == held.recall(cues).ids.tolist()
    named = AssociativeMemory.create(path, raw, ids=np.arange(100)[::-1] * 3, beta=50.0)
    assert named.ids.tolist() == [3 * one for one in range(99, -1, -1)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"patterns": np.zeros((0, 3))}, "one per row"),
        ({"patterns": np.zeros(3)}, "one per row"),
        ({"patterns": np.full((2, 3), np.nan)}, "finite patterns"),
        ({"patterns": np.eye(3), "ids": [1, 1, 2]}, "each once"),
        ({"patterns": np.eye(3), "ids": [1]}, "one id for each of 3"),
        ({"patterns": np.eye(3), "values": [1]}, "one value for each of 3"),
    ],
)
def test_a_creation_that_fails_leaves_no_file(path, arguments, words):
    with pytest.raises(ValueError, match=words):
        AssociativeMemory.create(path, **arguments)
    assert os.listdir(path.parent) == []


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux does")
def test_creation_and_recall_need_far_less_memory_than_the_patterns(path):
    """260 MB of patterns; the process may not ask for 160 MB more than it has at the start."""
    script = textwrap.dedent(
        """
        import resource, sys, numpy as np, torch, hopfy
        torch.set_num_threads(1)
        class Rows:  # made when asked for, as from another file
            def __init__(self, count):
                self.shape = (count, 64)
            def __getitem__(self, rows):
                rows = range(*rows.indices(self.shape[0]))
                return np.random.default_rng(rows.start).random((len(rows), 64), np.float32)
        def create_and_recall(name, rows):
            memory = hopfy.AssociativeMemory.create(name, rows, beta=9.0)
            return memory, memory.recall(torch.from_numpy(rows[0:2]))
        create_and_recall(sys.argv[1], Rows(2000))  # whatever is set up once
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        limit = (int(status["VmData"].split()[0]) << 10) + (160 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        memory, answer = create_and_recall(sys.argv[1], Rows(1 << 20))
        print(len(memory), answer.ids.tolist(), answer.certified.tolist())
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "1048576 [0, 1] [True, True]"
    assert path.stat().st_size > 260 << 20


# ---------------------------------------------------------------------- damage


def refused(path: Path, mmap: bool = False) -> str:
    with pytest.raises(ValueError, match="expected") as caught:
        AssociativeMemory.load(path, mmap=mmap).verify()
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_a_file_cut_anywhere_is_refused(path):
    make().save(path)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        refused(path)
    path.write_bytes(whole + b"\0")
    assert "truncated or longer" in refused(path)


@pytest.mark.parametrize("mmap", [False, True])
def test_a_flipped_bit_anywhere_is_found(path, mmap):
    make(3).save(path)
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    for place in range(0, len(whole), 3):
        broken = bytearray(whole)
        broken[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(broken)
        refused(path, mmap)
    path.write_bytes(whole)
    AssociativeMemory.load(path, mmap=mmap).verify()


def test_a_flipped_bit_in_mapped_patterns_waits_for_verify(path):
    make().save(path)
    place = tensor_file.StoredFile(path, _files.KIND).entries["rows"].start
    broken = bytearray(path.read_bytes())
    broken[place] ^= 1
    path.write_bytes(broken)
    memory = AssociativeMemory.load(path, mmap=True)
    with pytest.raises(ValueError, match="'rows' do not match their checksum"):
        memory.verify()
    assert "'rows' do not match their checksum" in refused(path)


# ---------------------------------------------------------------------- hostile files


def signed(header: dict, data: bytes) -> bytes:
    """A file whose checksums are right, whatever else it says."""
    header = json.loads(json.dumps(header))
    metadata = header["__metadata__"]
    metadata["header_sha256"] = "0" * 64
    for fill_in in (None, "digest"):
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + 8) % 64)
        packed = len(text).to_bytes(8, "little") + text
        if fill_in is None:
            metadata["header_sha256"] = hashlib.sha256(packed).hexdigest()
    return packed + data


def parts_of(path: Path) -> tuple[dict, bytes]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def rewritten(path: Path, change) -> None:
    header, data = parts_of(path)
    changed = change(header, bytearray(data))
    header, data = changed if changed is not None else (header, data)
    path.write_bytes(signed(header, bytes(data)))


def resettle(**changes):
    def change(header, data):
        settings = json.loads(header["__metadata__"]["settings"])
        settings.update(changes)
        header["__metadata__"]["settings"] = json.dumps(settings)
        return header, data

    return change


def update_header(part: str, **changes):
    def change(header, data):
        header[part].update(changes)
        return header, data

    return change


describe_rows, metadata = partial(update_header, "rows"), partial(update_header, "__metadata__")


def overwrite(name: str, tensor: torch.Tensor):
    """Replace a tensor's bytes and sign them."""

    def change(header, data):
        start, stop = header[name]["data_offsets"]
        new = tensor.contiguous().numpy().tobytes()
        assert len(new) == stop - start
        data[start:stop] = new
        digests = json.loads(header["__metadata__"]["tensor_sha256"])
        digests[name] = hashlib.sha256(new).hexdigest()
        header["__metadata__"]["tensor_sha256"] = json.dumps(digests)
        return header, data

    return change


def drop(name: str):
    def change(header, data):
        start, stop = header.pop(name)["data_offsets"]
        del data[start:stop]
        for entry in header.values():
            if "data_offsets" in entry and entry["data_offsets"][0] >= stop:
                entry["data_offsets"] = [x - (stop - start) for x in entry["data_offsets"]]
        return header, data

    return change


HOSTILE = {
    "huge": (describe_rows(shape=[2**40, 2**20]), "by its shape"),
    "huge and matching": (
        describe_rows(shape=[2**38, 1], data_offsets=[144, 144 + 2**40]),
        "overlaps|need",
    ),
    "overflowing": (describe_rows(shape=[2**62, 2**62]), "by its shape"),
    "beyond 64 bits": (describe_rows(shape=[2**70, 1]), "impossible sizes"),
    "negative": (describe_rows(shape=[-9, -6]), "impossible sizes"),
    "negative offset": (describe_rows(data_offsets=[-216, 0]), "impossible sizes"),
    "fractional": (describe_rows(shape=[9.0, 6]), "impossible sizes"),
    "truth values": (describe_rows(shape=[True, 54]), "impossible sizes"),
    "deep shape": (describe_rows(shape=[1] * 100 + [9, 6]), "impossible sizes"),
    "overlapping": (describe_rows(data_offsets=[0, 216]), "overlaps"),
    "backwards": (describe_rows(data_offsets=[216, 0]), "by its shape"),
    "text for shape": (describe_rows(shape="96"), "impossible sizes|described"),
    "no shape": (describe_rows(shape=None), "not described"),
    "three offsets": (describe_rows(data_offsets=[0, 1, 2]), "not described"),
    "unknown dtype": (describe_rows(dtype="C64"), "unknown dtype 'C64'"),
    "unhashable dtype": (describe_rows(dtype=["F32"]), "unknown dtype"),
    "integer patterns": (describe_rows(dtype="I32"), "not rows of float32"),
    "half patterns": (describe_rows(dtype="F16", shape=[9, 12]), "not rows of float32"),
    "flat patterns": (describe_rows(shape=[54]), "not rows of float32"),
    "no coordinates": (describe_rows(shape=[54, 1]), "no coordinates"),
    "other count": (describe_rows(shape=[6, 9]), "ids do not fit"),
    "no ids": (drop("ids"), "ids do not fit"),
    "ids twice": (overwrite("ids", torch.zeros(9, dtype=torch.int64)), "different numbers"),
    "negative ids": (overwrite("ids", torch.arange(-4, 5)), "different numbers"),
    "NaN patterns": (overwrite("rows", torch.full((9, 6), torch.nan)), "not finite"),
    "wild rivals": (overwrite("rivals", torch.full((9,), 10**6)), "rivals are not rows"),
    "NaN separations": (
        overwrite("separations", torch.full((9,), torch.nan, dtype=torch.float64)),
        "separations are not numbers",
    ),
    "rivals only": (drop("separations"), "separations do not fit"),
    "version 2": (
        metadata(version="2"),
        "version 1 of the memory format, got version '2'",
    ),
    "another format": (metadata(format="llama"), "does not say that it is"),
    "settings not JSON": (
        metadata(settings="{"),
        "settings are missing or unreadable",
    ),
    "settings a list": (
        metadata(settings="[]"),
        "settings are missing or unreadable",
    ),
    "settings deep": (
        metadata(settings="[" * 20000),
        "settings are missing or unreadable",
    ),
    "settings not text": (
        metadata(settings=5),
        "settings are missing or unreadable",
    ),
    "no checksums": (metadata(tensor_sha256="{}"), "checksum"),
    "beta zero": (resettle(beta=0), "settings are not those"),
    "beta negative": (resettle(beta=-3.0), "settings are not those"),
    "beta NaN": (resettle(beta=float("nan")), "settings are not those"),
    "beta a list": (resettle(beta=[1]), "settings are not those"),
    "omega unknown": (resettle(omega=["exec", "1"]), "settings are not those"),
    "omega text": (resettle(omega="os.system"), "settings are not those"),
    "omega alpha": (resettle(omega=["entmax", "0.5"]), "settings are not those"),
    "omega list": (resettle(omega=[["entmax"], "2"]), "settings are not those"),
    "compare unknown": (resettle(compare="cosine"), "settings are not those"),
    "radius missing": (resettle(radius=None), "radius does not fit"),
    "radius infinite": (resettle(radius=float("inf")), "radius does not fit"),
    "radius negative": (resettle(radius=-1.0), "radius does not fit"),
    "radius text": (resettle(radius="1"), "radius does not fit"),
    "radius of dot": (resettle(compare="dot"), "radius does not fit"),
    "next id taken": (resettle(next_id=3), "next id is already taken"),
    "next id huge": (resettle(next_id=2**80), "next id is already taken"),
    "next id text": (resettle(next_id="10"), "next id is already taken"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_message(path, name):
    change, words = HOSTILE[name]
    memory = make()
    assert memory.beta > 0  # so that separations are saved as well
    memory.save(path)
    rewritten(path, change)
    for mmap in (False, True):
        with pytest.raises(ValueError, match=words) as caught:
            AssociativeMemory.load(path, mmap=mmap).verify()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


def test_the_hostile_files_differ_from_sound_ones_only_in_what_they_claim(path):
    memory = make()
    assert memory.beta > 0
    memory.save(path)
    rewritten(path, lambda header, data: (header, data))
    assert same(memory, AssociativeMemory.load(path))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        b"\xff" * 100,
        (1 << 62).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{}",
        (4).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc",
        (1 << 19).to_bytes(8, "little") + b"[" * (1 << 19),
        (1 << 21).to_bytes(8, "little") + b" " * (1 << 21),
        (5008).to_bytes(8, "little") + b'{"a": ' + b"1" * 5001 + b"}",
        b"PK\x03\x04 a zip archive, as torch.save writes it, or anything else",
        b"\x80\x04\x95 a pickle",
    ],
)
def test_other_kinds_of_files_are_refused(path, content):
    path.write_bytes(content)
    refused(path)
    refused(path, mmap=True)


def test_another_safetensors_file_is_refused(path):
    safetensors.torch.save_file({"rows": torch.eye(3)}, path)
    assert "does not say that it is" in refused(path)


def test_a_missing_file_is_missing(path):
    with pytest.raises(FileNotFoundError):
        AssociativeMemory.load(path)
    with pytest.raises(FileNotFoundError):
        make().save(path / "folder" / "file")


# ---------------------------------------------------------------------- crashes

KILLED = textwrap.dedent(
    """
    import os, random, signal, sys, time, warnings
    warnings.simplefilter("ignore")
    import torch, hopfy
    torch.set_num_threads(1)
    folder, kind, times, step = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    path = os.path.join(folder, "patterns.hopfy")
    def make(number):
        memory = hopfy.AssociativeMemory(beta=1.0)
        # Large enough for many writes, and different in every byte.
        memory.add(torch.full((400 + 100 * number, 64), 1.0 + number), values=torch.arange(
            400 + 100 * number) + number)
        return memory
    old, new = make(0), make(1)

    def child(moment):
        if kind == "calls":
            left = moment
            def count(frame, event, argument):
                nonlocal left
                if event in ("c_call", "c_return"):
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
            sys.setprofile(count)
            new.save(path)
            sys.setprofile(None)
            os._exit(0)
        while True:
            new.save(path)
            old.save(path)

    random.seed(0)
    seen = {0: 0, 1: 0}
    moment = 1
    for attempt in range(times):
        old.save(path)
        pid = os.fork()
        if pid == 0:
            child(moment)
        if kind == "time":
            time.sleep(random.uniform(0, 0.03))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        found = hopfy.AssociativeMemory.load(path)  # verifies every checksum
        number = (len(found) - 400) // 100
        expected = (old, new)[number]
        chunk, judge = next(found.chunks(10**6)), next(expected.chunks(10**6))
        assert all(torch.equal(a, b) for a, b in zip(chunk, judge))
        seen[number] += 1
        names = sorted(os.listdir(folder))
        assert set(names) <= {"patterns.hopfy", ".patterns.hopfy.writing"}, names
        if kind == "calls" and status == 0:
            break
        moment += step
    old.save(path)
    assert os.listdir(folder) == ["patterns.hopfy"]
    print(attempt + 1, seen[0], seen[1], int(status == 0))
    """
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")
@pytest.mark.parametrize(
    ("kind", "times", "step"),
    [
        ("calls", 2000, 8),
        pytest.param("calls", 9999, 1, marks=pytest.mark.slow),
        ("time", 30, 0),
        pytest.param("time", 400, 0, marks=pytest.mark.slow),
    ],
)
def test_kill_9_leaves_the_old_file_or_the_new_one(tmp_path, kind, times, step):
    """``calls``: killed around calls into C, step by step through a save; ``time``: at random."""
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), kind, str(times), str(step)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    attempts, old, new, finished = map(int, run.stdout.split())
    if kind == "calls":
        assert finished == 1  # the whole of the save was tried
        assert attempts * step > 400
        assert new >= 1
    assert old > 10


def test_a_write_that_fails_changes_nothing(path, monkeypatch):
    make(4).save(path)
    before = path.read_bytes()

    def broken(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_file, "_write_rows", broken)
    with pytest.raises(OSError, match="No space left"):
        make(9).save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_the_data_reach_the_disk_before_the_name(path, monkeypatch):
    events = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *a, _name=name, _do=original: (events.append(_name), _do(*a))[1]
        )
    make().save(path)
    assert events == ["fsync", "replace", "fsync"]  # the file, its name, the folder


def test_what_a_killed_writer_left_is_used_up(path):
    temporary_beside(path).write_bytes(b"half a file" * 1000)
    make().save(path)
    assert os.listdir(path.parent) == [path.name]
    AssociativeMemory.load(path)


def test_a_link_in_the_way_is_not_followed(path):
    elsewhere = path.with_name("precious")
    elsewhere.write_bytes(b"precious")
    temporary_beside(path).symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic links"):
        make().save(path)
    assert elsewhere.read_bytes() == b"precious"


def test_saving_through_a_link_keeps_the_link(path):
    real = path.with_name("real")
    make(4).save(real)
    path.symlink_to(real)
    make(9).save(path)
    assert path.is_symlink()
    assert len(AssociativeMemory.load(real)) == 9


def test_many_writers_of_one_path_wait_for_each_other(path):
    memories = [make(count) for count in (3, 5, 8, 13)]

    def write(memory):
        for _ in range(8):
            memory.save(path)
            AssociativeMemory.load(path)

    together(*(partial(write, memory) for memory in memories))
    assert os.listdir(path.parent) == [path.name]
    assert len(AssociativeMemory.load(path)) in (3, 5, 8, 13)


def test_a_block_that_raises_replaces_nothing(path):
    path.write_bytes(b"old")

    def half_a_file():
        with replacing(path) as file:
            file.write(b"half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        half_a_file()
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_saving_keeps_the_mode_of_the_file_it_replaces(path, mode):
    memory = make()
    memory.save(path)
    os.chmod(path, mode)
    memory.save(path)
    assert os.stat(path).st_mode & 0o777 == mode


@pytest.mark.parametrize("letter", ["a", "ä"])
def test_names_up_to_the_limit_of_the_system(path, letter):
    width = len(letter.encode())
    long = path.with_name(letter * (255 // width))
    make().save(long)
    assert len(AssociativeMemory.load(long)) == len(make())
    assert os.listdir(path.parent) == [long.name]


def test_a_file_that_was_cut_is_refused_when_it_is_opened(path):
    make().save(path)
    os.truncate(path, os.path.getsize(path) - 1)
    for mmap in (True, False):
        with pytest.raises(ValueError, match="truncated"):
            AssociativeMemory.load(path, mmap=mmap)
