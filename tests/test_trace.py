"""The trace file: what is written comes back, and what is damaged is read as far as it goes or refused."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probed import probes, run_probed
from xlocal.tracer.calltree import Function
from xlocal.tracer.decode import LEAVE, RAISE, RESUME, decode, fold
from xlocal.tracer.errors import TraceFormatError
from xlocal.tracer.trace import MAGIC, RECORD, Code, Trace, load_all

HEADER = {
    "version": 1,
    "pid": 7,
    "python": [3, 11, 0],
    "implementation": "cpython",
    "executable": "python",
    "backend": "test",
    "argv": ["main.py"],
    "parent": None,
    "order": 0,
    "started": 0.0,
}


def record(kind: bytes, stream: int, payload: bytes) -> bytes:
    return RECORD.pack(kind, stream, len(payload)) + payload


def plain(kind: bytes, value: object, stream: int = 0) -> bytes:
    return record(kind, stream, json.dumps(value).encode())


def code(number: int, name: str = "f", kind: str = "function") -> bytes:
    return plain(b"P", [1, "m.py"]) + plain(b"F", [number, 1, number, name, kind])


def chunk(number: int, words: list[int], stream: int = 0) -> bytes:
    short = max(words, default=0) < 65536
    content = struct.pack(f"<{len(words)}{'H' if short else 'I'}", *words)
    return record(b"S" if short else b"C", stream, struct.pack("<I", number) + zlib.compress(content))


def write(file: Path, *records: bytes) -> Path:
    file.write_bytes(MAGIC + b"".join(records))
    return file


def thread(number: int = 0, started_at: list[int] | None = None, order: int = 0) -> bytes:
    return plain(b"T", {"name": "", "started_at": started_at, "order": order}, number)


FOOTER = plain(
    b"E", {"streams": 1, "codes": 0, "warnings": [["a-slug", "text"]], "ending": {"status": 3}, "outside": ["x"]}
)


@given(st.lists(st.lists(st.integers(1, 2**16) | st.integers(1, 2**32 - 1), max_size=30), max_size=5))
@settings(max_examples=50, deadline=None)
def test_words_come_back(chunks: list[list[int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        records = [chunk(number, words) for number, words in enumerate(chunks, 1)]
        trace = Trace.load(write(Path(folder) / "main.xtrace", plain(b"H", HEADER), thread(), *records, FOOTER))
    assert trace.streams[0].words.tolist() == [word for words in chunks for word in words]
    assert (trace.complete, trace.status, trace.outside) == (True, 3, ("x",))


def test_a_recorded_program_comes_back_whole(tmp_path: Path) -> None:
    run = run_probed(probes()[0], tmp_path, "def f(): pass\ndef main(): f(); f()\nmain()\n", argv=["a"])
    trace = run.main
    script = str(tmp_path / "main.py")
    assert trace.codes == (Code(script, 2, "main", "function"), Code(script, 1, "f", "function"))
    assert trace.streams[0].words.tolist() == [8, 16, 16 | LEAVE, 16, 16 | LEAVE, 8 | LEAVE]
    assert (trace.status, trace.uncaught, trace.warnings, trace.parent, trace.complete) == (0, (), (), None, True)
    assert (trace.argv, trace.backend) == ((script, "a"), probes()[0].backend)
    assert not trace.streams[0].words.flags.writeable
    assert sorted(path.name for path in run.folder.glob("main.xtrace*")) == ["main.xtrace"]


def test_cut_at_every_byte_it_is_read_or_refused(tmp_path: Path) -> None:
    run = run_probed(probes()[0], tmp_path, "def f(): pass\ndef main(): f(); f()\nmain()\n")
    whole = (run.folder / "main.xtrace").read_bytes()
    all_words = run.main.streams[0].words.tolist()
    header = len(MAGIC) + RECORD.size + RECORD.unpack_from(whole, len(MAGIC))[2]
    file = tmp_path / "cut.xtrace"
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        if length < header:
            with pytest.raises(TraceFormatError, match=r"cut short before its header|not a trace file"):
                Trace.load(file)
            continue
        trace = Trace.load(file)
        assert [warning.slug for warning in trace.warnings] == ["trace-cut-short"]
        assert [stream.words.tolist() for stream in trace.streams] in ([], [[]], [all_words])
        decode([trace])


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_damaged_bytes_are_read_or_refused(data: st.DataObject) -> None:
    import tempfile

    whole = bytearray(MAGIC + plain(b"H", HEADER) + thread() + code(1) + chunk(1, [8, 9]) + FOOTER)
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "main.xtrace"
        file.write_bytes(whole)
        with contextlib.suppress(TraceFormatError):  # anything else fails the test
            decode([Trace.load(file)])


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "main.xtrace", plain(b"H", {**HEADER, "version": 2}), thread(), FOOTER)
    with pytest.raises(TraceFormatError, match="format 2, this xlocal reads up to 1; upgrade xlocal"):
        Trace.load(file)


@pytest.mark.parametrize("content", [b"", b"something else", MAGIC[:-1]])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "main.xtrace"
    file.write_bytes(content)
    with pytest.raises(TraceFormatError, match="not a trace file"):
        Trace.load(file)


def test_a_missing_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match=r"holds no main\.xtrace"):
        load_all(tmp_path)


def test_the_buffer_of_a_killed_process_is_read(tmp_path: Path) -> None:
    file = write(tmp_path / "main.xtrace", plain(b"H", HEADER), thread(), chunk(1, [8, 9]))
    (tmp_path / "main.xtrace.0").write_bytes(struct.pack("<6I", 2, 8, 9, 8, 0, 0))
    assert Trace.load(file).streams[0].words.tolist() == [8, 9, 8, 9, 8]


def test_a_buffer_that_was_written_already_is_not_read_twice(tmp_path: Path) -> None:
    file = write(tmp_path / "main.xtrace", plain(b"H", HEADER), thread(), chunk(1, [8, 9]))
    (tmp_path / "main.xtrace.0").write_bytes(struct.pack("<4I", 1, 8, 9, 0))
    assert Trace.load(file).streams[0].words.tolist() == [8, 9]


def _tree(tmp_path: Path, words: list[int], kinds: tuple[str, ...] = ("function",) * 4) -> str:
    codes = [code(number, f"f{number}", kind) for number, kind in enumerate(kinds, 1)]
    file = write(tmp_path / "main.xtrace", plain(b"H", HEADER), thread(), *codes, chunk(1, words), FOOTER)
    tree = fold(decode([Trace.load(file)]), lambda code: Function("m.py", code.name))
    return tree.outline()


def test_lost_leaves_do_not_harm_the_rest(tmp_path: Path) -> None:
    f1, f2, f3 = 8, 16, 24
    assert _tree(tmp_path, [f1, f2, f3, f1 | LEAVE, f2, f2 | LEAVE]) == "f1\n  f2\n    f3\nf2"
    assert _tree(tmp_path, [f1, f3 | LEAVE, f2, f2 | LEAVE, f1 | LEAVE, f3]) == "f1\n  f2\nf3"


def test_raise_and_resume_without_their_second_word(tmp_path: Path) -> None:
    assert _tree(tmp_path, [8, 8 | RAISE]) == "f1"
    assert _tree(tmp_path, [8, 8 | LEAVE, 8 | RESUME], ("generator",)) == "f1"
    assert _tree(tmp_path, [8, 8 | LEAVE, 8 | RESUME, 9], ("generator",)) == "f1\nf1"


def test_processes_come_in_the_order_of_their_starts(tmp_path: Path) -> None:
    write(
        tmp_path / "main.xtrace",
        plain(b"H", HEADER),
        thread(),
        code(1),
        chunk(1, [8]),
    )
    for pid, order, started in ((20, 2, 1.0), (30, 1, 2.0)):
        header = {**HEADER, "pid": pid, "parent": [7, 0, 1], "order": order, "started": started}
        named = code(1, f"p{pid}")
        write(tmp_path / f"child-{pid}.xtrace", plain(b"H", header), thread(), named, chunk(1, [8]), FOOTER)
    tree = fold(decode(load_all(tmp_path)), lambda code: Function("m.py", code.name))
    assert tree.outline() == "f\n  p30\n  p20"
    assert tree.thread.tolist() == [0, 0, 1, 2]


def test_huge_recursion_is_no_trouble(tmp_path: Path) -> None:
    words = [8] * 300_000
    codes = code(1)
    file = write(tmp_path / "main.xtrace", plain(b"H", HEADER), thread(), codes, chunk(1, words), FOOTER)
    raw = decode([Trace.load(file)])
    assert np.array_equal(raw.parent[1:], np.arange(300_000))
