"""Runs one command inside its own interpreter and records which functions of the scope it calls.

Usage: PYTHON probe.py CONFIG.json. This file is executed by path in the target's interpreter, so it is one file,
uses the standard library alone, and keeps to the syntax of Python 3.6. It never raises into the program, calls
none of its code and keeps none of its objects alive except code objects and exception types. docs/trace_format.md
describes what it writes; docs/how_it_works.md says why it works as it does. It is long because it is one file: what
the hooks share, the two hooks in Python, their twins in C (probe.c), and the running of the command.
"""

import os
import sys

if __name__ == "__main__" and sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
    del sys.path[0]  # our own folder: its trace.py would hide the standard library's

import _thread
import mmap
import struct
import threading
import time
import zlib

VERSION = 1
MAGIC = b"XLTRACE\n"
ENTER, LEAVE, RAISE, RESUME, SWITCH = 0, 1, 2, 3, 4  # the low three bits of a word; the rest is the code's number
UNKNOWN = 1  # the first exception type: one whose name could not be seen
CHUNK = 1 << 16  # words in a stream's buffer: 256 KiB
SMALL_CHUNK = 1 << 12  # for threads after the first, since a program may start thousands
TOOL_NAME = "xlocal"

CO_OPTIMIZED = 0x1
RESUMABLE = 0x20 | 0x80 | 0x200  # generator, coroutine, asynchronous generator
IGNORED = 0
SPECIAL = -1  # codes outside the scope that the hook must look at: thread starts, process starts, seeded modules


def dumps(value):
    """JSON of plain values; the json module stays unimported, so that the program finds it as it left it."""
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        if value.isprintable() and '"' not in value and "\\" not in value and len(value) == len(value.encode()):
            return '"' + value + '"'
        return '"' + "".join(map(_escaped, value)) + '"'
    if isinstance(value, dict):
        return "{" + ",".join(dumps(key) + ":" + dumps(item) for key, item in value.items()) + "}"
    return "[" + ",".join(map(dumps, value)) + "]"


def _escaped(char):
    if char in '"\\':
        return "\\" + char
    if " " <= char <= "~":
        return char
    number = ord(char)
    if number < 0x10000:
        return "\\u%04x" % number
    number -= 0x10000
    return "\\u%04x\\u%04x" % (0xD800 + (number >> 10), 0xDC00 + (number & 0x3FF))


def read_config(path):
    """The configuration: a JSON text of our own, read as the Python expression that it also is.

    It comes as UTF-8 without escapes, since Python reads a surrogate pair as two characters.
    """
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        text = file.read()
    config = eval(text, {"__builtins__": {}, "null": None, "true": True, "false": False})
    config["text"] = text
    return config


class TraceWriter:
    """The trace file: a magic line, then records of kind (1 byte), stream (4), length (4) and payload."""

    def __init__(self, folder, stem):
        self.folder = folder
        self.descriptor, self.path = self._create(stem)
        self.lock = _thread.allocate_lock()
        self.failed = None
        os.write(self.descriptor, MAGIC)

    def _create(self, stem):
        number = 0
        while True:
            path = os.path.join(self.folder, stem + ("-%d" % number if number else "") + ".xtrace")
            try:
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o644), path
            except FileExistsError:
                number += 1

    def write(self, kind, stream, payload):
        """Append one record; a failure (a full disk) is kept for the footer and ends the recording of data."""
        record = struct.pack("<cII", kind, stream, len(payload)) + payload
        with self.lock:
            if self.failed:
                return
            try:
                while record:
                    record = record[os.write(self.descriptor, record) :]
            except OSError as error:
                self.failed = error.strerror or "write failed"
                try:
                    sys.__stderr__.write("xlocal: cannot write %s: %s\n" % (self.path, self.failed))
                except (OSError, ValueError, AttributeError):
                    pass  # no stderr to say it on; the reader will see the cut

    def write_json(self, kind, stream, value):
        self.write(kind, stream, dumps(value).encode("ascii"))


class Stream:
    """The words of one thread, in a buffer that is shared with a file, so that nothing is lost by a sudden death.

    `words[0]` is the number of the chunk that the buffer holds; the reader takes the buffer's file when the
    process ended before it could write its last chunk.
    """

    def __init__(self, recorder, number, small):
        self.recorder = recorder
        self.number = number
        self.ident = _thread.get_ident()
        self.tail = "%s.%d" % (recorder.writer.path, number)
        buffer = memoryview(self._buffer((SMALL_CHUNK if small else CHUNK) * 4))
        self.words, self.halves = buffer.cast("I"), buffer.cast("H")
        self.chunk = self.words[0] = 1
        self.flushed = 0  # words in the chunks written so far
        self.limit = len(self.words) * 7 // 8  # where it is flushed; the rest is for when that fails
        # Set by the hook that writes into this stream:
        self.position = None  # () -> index of the next word
        self.rebind = None  # (fresh stream) -> None, after a fork
        self.write_pair = None  # (word, extra) -> None, from this thread
        self.close = None  # () -> None, gives the buffer up

    def _buffer(self, size):
        try:
            descriptor = os.open(self.tail, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                # Real blocks, not a hole: writing into a hole of a full disk would kill the program by SIGBUS.
                zeros = bytes(size)
                while zeros:
                    zeros = zeros[os.write(descriptor, zeros) :]
                return mmap.mmap(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError:
            self.drop_tail()
            return mmap.mmap(-1, size)

    def flush(self, end):
        """Write `words[1:end]` as one chunk and return the index where the next word goes.

        At the recursion limit nothing is written and the buffer grows on; the next word tries again.
        """
        try:
            kind, words = b"C", self.words[1:end].tobytes()
            if not self.halves[3 : 2 * end : 2].tobytes().strip(b"\0"):  # little-endian: the upper halves
                kind, words = b"S", self.halves[2 : 2 * end : 2].tobytes()
            self.recorder.writer.write(kind, self.number, struct.pack("<I", self.chunk) + zlib.compress(words, 3))
        except RecursionError:
            return min(end, len(self.words) - 2)
        self.chunk += 1
        self.flushed += end - 1
        self.words[0] = self.chunk
        self.words[1:end] = memoryview(bytes((end - 1) * 4)).cast("I")
        return 1

    def place(self):
        """Where this stream stands: `[number, words written]`, as stored for what is started from here."""
        return [self.number, self.flushed + self.position() - 1]

    def retire(self):
        """Write what the stream of an ended thread still holds and give its buffer back."""
        if self.words is not None and self.position is not None:
            self.flush(self.position())
            self.drop_tail()
            self.words = self.halves = None
            if self.close is not None:
                self.close()
            self.position = self.rebind = self.write_pair = self.close = None  # they hold the buffer

    def drop_tail(self):
        try:
            os.unlink(self.tail)
        except OSError:
            pass  # already gone, or never made


class Recorder:
    """Everything that is recorded of one process: codes, exception types, streams, and what the footer says."""

    def __init__(self, config, stem, origin, backend):
        self.config = config
        self.origin = origin  # [pid, stream, words, order] of what started this process, None for the first
        self.backend = backend
        self.scope = [os.path.normcase(path) for path in config["scope"]]
        self.tokens = {}  # id(code) -> token; the codes are kept alive below, so that an id is never used twice
        self.codes = []
        self.types = {}  # id(type) -> number
        self.kept_types = [None]
        self.streams = []
        self.by_ident = {}  # the stream of each thread that may be running
        self.outside = {}
        self.inside_file = {}
        self.paths = {}  # filename -> number of its path
        self.thread_starts = {}  # id(thread) whose first event is still to come -> (where it was started, its order)
        self.started = 0  # threads and processes started from here so far
        self.main_code = None
        self.lock = _thread.allocate_lock()
        self.recorded = 0
        self.warnings = []
        self.closed = False
        self.open(stem, origin)
        self.exception_number(RecursionError)  # when it is first seen, there may be no room left to write its name

    def open(self, stem, origin):
        parent, order = (None, 0) if origin is None else (origin[:3], origin[3])
        self.writer = TraceWriter(self.config["out"], stem)
        self.writer.write_json(
            b"H",
            0,
            {
                "version": VERSION,
                "pid": os.getpid(),
                "python": list(sys.version_info[:3]),
                "implementation": sys.implementation.name,
                "executable": sys.executable,
                "backend": self.backend,
                "argv": list(self.config["argv"]),
                "parent": parent,
                "order": order,
                "started": time.time(),
            },
        )

    def stream(self, small):
        """A stream for the calling thread; one whose thread has ended gives its buffer's space back first."""
        with self.lock:
            self._retire_ended_threads()
            stream = Stream(self, len(self.streams), small)
            self.streams.append(stream)
            self.by_ident[stream.ident] = stream
        thread = threading._active.get(stream.ident)  # current_thread() would invent a dummy thread
        place, order = self.thread_starts.pop(id(thread), None) or (None, self.next_order() if stream.number else 0)
        self.writer.write_json(b"T", stream.number, {"name": thread_name(thread), "started_at": place, "order": order})
        if "greenlet" in sys.modules:
            follow_greenlets(self)
        return stream

    def _retire_ended_threads(self):
        ended = self.by_ident.pop(_thread.get_ident(), None)  # the system gives idents again
        if ended is not None:
            ended.retire()
        if len(self.streams) % 64 == 63:
            alive = sys._current_frames()
            for ident in [ident for ident in self.by_ident if ident not in alive]:
                self.by_ident.pop(ident).retire()

    def is_new_thread(self, ident):
        return id(threading._active.get(ident)) in self.thread_starts

    def token(self, code, frame):
        """The token of a code seen for the first time: its number shifted, negative for special ones, or IGNORED."""
        with self.lock:
            known = self.tokens.get(id(code))
            if known is not None:
                return known
            token = self._classify(code, frame)
            self.codes.append(code)
            self.tokens[id(code)] = token
            return token

    def _classify(self, code, frame):
        filename, name = code.co_filename, code.co_name
        if code is self.main_code:
            return IGNORED
        imported = name == "<module>" and _is_import(frame)
        if not imported and not self.is_inside(filename):
            self.outside[filename] = True
            return SPECIAL if _is_special(filename, name) else IGNORED
        if imported and (_is_seeded(filename) or _is_greenlet(filename)):
            return SPECIAL
        self.recorded += 1
        resumable = bool(code.co_flags & RESUMABLE)
        kind = "module" if name == "<module>" else "function"
        if imported:
            kind = "import"
        elif resumable:
            kind = "generator"
        elif not code.co_flags & CO_OPTIMIZED and kind == "function":
            kind = "class"
        path = self.path_number(filename)
        self.writer.write_json(b"F", 0, [self.recorded, path, code.co_firstlineno, name, kind])
        token = self.recorded << 3
        return -token if resumable else token

    def path_number(self, filename):
        number = self.paths.get(filename)
        if number is None:
            number = self.paths[filename] = len(self.paths) + 1
            self.writer.write_json(b"P", 0, [number, os.path.abspath(filename)])
        return number

    def is_inside(self, filename):
        inside = self.inside_file.get(filename)
        if inside is None and filename.startswith("<"):
            inside = self.inside_file[filename] = False  # no file: frozen, or compiled from a string
        elif inside is None:
            path = os.path.normcase(os.path.abspath(filename))
            inside = self.inside_file[filename] = any(_is_under(path, prefix) for prefix in self.scope)
        return inside

    def exception_number(self, kind):
        """The number of an exception type; its name is written when it is seen for the first time."""
        number = self.types.get(id(kind))
        if number is None:
            with self.lock:
                number = len(self.kept_types) + 1
                # Written before it is counted: at the recursion limit any call here may fail.
                self.writer.write_json(b"X", 0, [number, _type_name(kind)])
                self.kept_types.append(kind)
                self.types[id(kind)] = number
        return number

    def special_enter(self, code, frame):
        """Remember which call starts a thread or a process, when `code` is the library function that does so."""
        stream = self.by_ident.get(_thread.get_ident())
        if stream is None or code.co_name == "<module>":
            return
        if code.co_name == "start":
            started = frame.f_locals.get("self")
            self.thread_starts[id(started)] = (stream.place(), self.next_order())
        else:
            origin = [os.getpid()] + stream.place() + [self.next_order()]
            os.environ["XLOCAL_PARENT"] = ":".join(map(str, origin))

    def special_leave(self, code):
        """Seed a module that was just imported, or follow its switches."""
        if code.co_name == "<module>" and _is_greenlet(code.co_filename):
            follow_greenlets(self)
        elif code.co_name == "<module>":
            _seed(code.co_filename, self.config.get("seed"))

    def next_order(self):
        """The moment of a start among all of this process: what was started first comes first in the tree."""
        self.started += 1
        return self.started

    def warn(self, slug, text):
        self.warnings.append([slug, text])

    def close(self, ending):
        """Write the last chunks and the footer; what other threads still record is dropped."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
        for stream in self.streams:
            if stream.words is not None and stream.position is not None:
                stream.flush(stream.position())
        footer = {"streams": len(self.streams), "codes": self.recorded, "warnings": self.warnings, "ending": ending}
        outside = [path for path in self.outside if not path.startswith("<") and path != __file__]
        footer["outside"] = sorted(outside)[:5000]
        self.writer.write_json(b"E", 0, footer)
        if self.writer.failed is None:
            for stream in self.streams:
                stream.drop_tail()

    def restart_in_child(self):
        """After a fork: a file of its own, and nothing written into the parent's shared buffers."""
        mine = self.by_ident.get(_thread.get_ident())
        origin = [self.fork_parent] + (mine.place() if mine else [0, 0]) + [self.started]
        streams, self.streams, self.by_ident = self.streams, [], {}
        os.close(self.writer.descriptor)
        self.lock = _thread.allocate_lock()
        self.started, self.paths = 0, {}
        self.open("child-%d" % os.getpid(), origin)
        for code in self.codes:
            self._write_again(code)
        for number, kind in enumerate(self.kept_types[1:], 2):
            self.writer.write_json(b"X", 0, [number, _type_name(kind)])
        fresh = self.stream(small=False)
        if mine is not None:
            for name in ("position", "rebind", "write_pair", "close"):
                setattr(fresh, name, getattr(mine, name))
            fresh.rebind(fresh)
        for stream in streams:
            stream.words = None

    def _write_again(self, code):
        token = self.tokens[id(code)]
        if token in (IGNORED, SPECIAL):
            return
        kind = "generator" if token < 0 else "function"
        if code.co_name == "<module>":
            kind = "import"
        elif token > 0 and not code.co_flags & CO_OPTIMIZED:
            kind = "class"
        row = [abs(token) >> 3, self.path_number(code.co_filename), code.co_firstlineno, code.co_name, kind]
        self.writer.write_json(b"F", 0, row)


def _is_under(path, prefix):
    if path == prefix:
        return True
    if not prefix.endswith(os.sep) or not path.startswith(prefix):
        return False
    # An environment that lies inside the project is not the project.
    rest = path[len(prefix) :].split(os.sep)
    return "site-packages" not in rest and "dist-packages" not in rest


def _is_import(frame):
    """True when a module's code is run by the import system (pytest's import hook counts), not by exec."""
    caller = frame.f_back
    while caller is not None and caller.f_code.co_filename == __file__:
        caller = caller.f_back
    if caller is None:
        return False
    code = caller.f_code
    return code.co_filename.startswith("<frozen importlib") or code.co_name == "exec_module"


def _is_special(filename, name):
    base = os.path.basename(filename)
    return (base, name) in (
        ("threading.py", "start"),
        ("subprocess.py", "_execute_child"),
        ("util.py", "spawnv_passfds"),
    )


def _is_seeded(filename):
    return filename.endswith(("numpy/random/__init__.py", "/random.py")) and (
        "numpy" in filename or filename == os.path.join(os.path.dirname(os.__file__), "random.py")
    )


def _is_greenlet(filename):
    return filename.endswith(os.path.join("greenlet", "__init__.py"))


def _seed(filename, seed):
    module = sys.modules.get("numpy.random" if "numpy" in filename else "random")
    if seed is not None and hasattr(module, "seed"):
        module.seed(seed)


def _type_name(kind):
    module = type.__getattribute__(kind, "__module__")
    name = type.__getattribute__(kind, "__qualname__")
    if not isinstance(module, str) or module == "builtins":
        return str(name)
    return "%s.%s" % (module, name)


def follow_greenlets(recorder):
    """Note which greenlet of this thread runs: each has a stack of its own, which a switch leaves as it is.

    A new one's number is never that of another, for its first calls hang under the call that switched to it first.
    """
    from _weakref import ref

    greenlet = sys.modules["greenlet"]
    if not hasattr(greenlet, "settrace"):
        return
    numbers = {}  # id(greenlet) -> (number, weak reference to it)
    previous = greenlet.gettrace()
    count = 0
    named = None  # the stream that knows the running greenlet

    def number_of(thread):
        nonlocal count
        known = numbers.get(id(thread))
        if known is None or known[1]() is not thread:
            count += 1
            known = numbers[id(thread)] = (count, ref(thread))
        return known[0]

    def switched(event, arguments):
        nonlocal named
        stream = recorder.by_ident.get(_thread.get_ident())
        if event in ("switch", "throw") and stream is not None and stream.write_pair is not None:
            if named is not stream:
                named = stream
                stream.write_pair(SWITCH, number_of(arguments[0]))
            stream.write_pair(SWITCH, number_of(arguments[1]))
        if previous is not None:
            previous(event, arguments)

    if getattr(previous, "__code__", None) is not switched.__code__:
        greenlet.settrace(switched)


# --- sys.setprofile: Python 3.6 and later -----------------------------------------------------------------------


def _opcodes(*names):
    import opcode

    return frozenset(opcode.opmap[name] for name in names if name in opcode.opmap)


class ProfileBackend:
    """Records by sys.setprofile: a hook of its own for each thread."""

    name = "setprofile"
    stopped = False

    def __init__(self, recorder):
        self.recorder = recorder
        self.returns = _opcodes("RETURN_VALUE", "RETURN_CONST")
        self.ends = self.returns | _opcodes("YIELD_VALUE", "RETURN_GENERATOR")
        self.yield_from = _opcodes("YIELD_FROM")
        self.resume = _opcodes("RESUME")
        self.bytecode = {}  # id(code) -> (its bytecode, where its first instruction to be observed is)
        self.hook = None

    def start(self):
        self.previous = sys.getprofile()
        self.previous_threads = threading._profile_hook
        threading.setprofile(self._first_event)
        self.hook = self._hook(self.recorder.stream(small=False))
        if self.previous is not None:
            self.recorder.warn("hook-replaced", "another profile function was active and did not see this run")
        self._set(self.hook)

    def stop(self):
        """Take the hook off the main thread; say so when it was not there any more."""
        if sys.getprofile() is not self.hook:
            self.recorder.warn(
                "hook-lost",
                "the profile hook was gone when the script ended, so calls after that are missing: " + self.loss,
            )
        sys.setprofile(self.previous)
        threading.setprofile(self.previous_threads)

    def paused(self, action):
        """Run our own `action` unseen, in the thread that calls."""
        hook = sys.getprofile()
        sys.setprofile(None)
        try:
            action()
        finally:
            sys.setprofile(hook)

    def _first_event(self, frame, event, arg):
        if self.recorder.closed:
            sys.setprofile(None)
            return
        hook = self._hook(self.recorder.stream(small=True))
        self._set(hook)
        hook(frame, event, arg)

    _set = staticmethod(sys.setprofile)
    loss = "the program set its own profile function, or it reached the recursion limit (Python then drops the hook)"

    def _bytecode(self, code):
        found = self.bytecode.get(id(code))
        if found is None:
            bytecode = code.co_code  # computed anew at each access on 3.11 and later
            start = -1
            if self.resume:  # from 3.11 on a generator's frame has run some instructions before its first event
                start = next((at for at in range(0, len(bytecode), 2) if bytecode[at] in self.resume), -1)
            found = self.bytecode[id(code)] = (bytecode, start)
        return found

    def _left_by_exception(self, frame):
        """Whether a frame that 'returns' None is being unwound: its last instruction is no return and no yield.

        An exception thrown in at a yield cannot be told from yielding None.
        """
        (bytecode, start), last = self._bytecode(frame.f_code), frame.f_lasti
        if last < max(start, 0):
            return True  # closed or thrown into before its first instruction
        if bytecode[last] in self.ends or (bytecode[last] in self.resume and last > start):
            return False  # from 3.13 on a yield counts as the instruction after it
        return not (last + 2 < len(bytecode) and bytecode[last + 2] in self.yield_from)

    def _is_fresh(self, frame):
        """Whether a generator's frame runs for the first time: after a lost end its id may be another's."""
        return frame.f_lasti <= self._bytecode(frame.f_code)[1]

    def _is_finished(self, frame):
        return self._bytecode(frame.f_code)[0][frame.f_lasti] in self.returns

    def _hook(self, stream):  # noqa: PLR0915 - closures over one thread's cells
        """The profile function of one thread. Hot: locals and cells only."""
        tokens_get = self.recorder.tokens.get
        new_token, special_enter = self.recorder.token, self.recorder.special_enter
        left_by_exception, catch_type, is_fresh = self._left_by_exception, self._catch_type, self._is_fresh
        words, at, limit = stream.words, 1, stream.limit
        generators = {}  # id(frame) of one that is not finished -> its serial number in this stream
        serials = 0
        id_ = id

        def hook(frame, event, arg):
            nonlocal at
            if event == "call":
                code = frame.f_code
                token = tokens_get(id_(code))
                if token is None:
                    token = new_token(code, frame)
                if token > 0:
                    words[at] = token
                    at += 1
                    if at > limit:
                        at = stream.flush(at)
                elif token < 0:
                    special_call(token, code, frame)
            elif event == "return":
                token = tokens_get(id_(frame.f_code), 0)
                if token > 0:
                    if arg is None and left_by_exception(frame):
                        unwind(token, frame)
                    else:
                        words[at] = token | LEAVE
                        at += 1
                        if at > limit:
                            at = stream.flush(at)
                elif token < 0:
                    special_return(token, frame, arg)

        def write(*new_words):
            nonlocal at
            for word in new_words:
                words[at] = word
                at += 1
            if at > limit:
                at = stream.flush(at)

        def special_call(token, code, frame):
            nonlocal serials
            if token == SPECIAL:
                special_enter(code, frame)
                return
            serial = generators.get(id_(frame))
            if serial is not None and not is_fresh(frame):
                write(-token | RESUME, serials - serial + 1)
                return
            serials += 1
            generators[id_(frame)] = serials
            write(-token | ENTER)

        def special_return(token, frame, arg):
            if token == SPECIAL:
                self.recorder.special_leave(frame.f_code)
                return
            if arg is None and left_by_exception(frame):
                generators.pop(id_(frame), None)
                unwind(-token, frame)
                return
            if self._is_finished(frame):
                generators.pop(id_(frame), None)
            write(-token | LEAVE)

        def unwind(token, frame):
            write(token | RAISE, UNKNOWN)
            if at > 1:
                catch_type(frame, words, at - 1)

        def position():
            return at

        def rebind(fresh):
            nonlocal stream, words, at, serials
            stream, words, at, serials = fresh, fresh.words, 1, 0
            generators.clear()  # those begun before the fork are new to this process's tree

        stream.position, stream.rebind, stream.write_pair = position, rebind, write
        return hook

    def _catch_type(self, frame, words, at):
        """Learn the type of the exception that is leaving `frame`, which a profile function is not told.

        The caller's trace function is: it gets an 'exception' event right after this return. So one is set for
        just that moment, unless the program traces itself.
        """
        caller = frame.f_back
        if caller is None or sys.gettrace() is not None or caller.f_trace is not None:
            return
        chunk = words[0]
        number = self.recorder.exception_number

        def trace(frame, event, arg):
            sys.settrace(None)
            caller.f_trace = None
            if event == "exception" and frame is caller and words[0] == chunk and words[at] == UNKNOWN:
                words[at] = number(arg[0])

        caller.f_trace = trace
        sys.settrace(trace)


# --- sys.monitoring: Python 3.12 and later ----------------------------------------------------------------------


class MonitoringBackend:
    """Records by sys.monitoring: events of code outside the scope are switched off when first seen."""

    name = "monitoring"
    stopped = False

    def __init__(self, recorder):
        self.recorder = recorder
        self.monitoring = sys.monitoring
        free = [number for number in (4, 3, 1, 2, 5, 0) if sys.monitoring.get_tool(number) is None]
        if not free:
            raise SystemExit("xlocal: all tool numbers of sys.monitoring are in use; use --backend setprofile")
        self.tool = free[0]
        self.states = {}

    def start(self):
        events = self.monitoring.events
        self.monitoring.use_tool_id(self.tool, TOOL_NAME)
        self.events = events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
        self.events |= events.PY_UNWIND | events.PY_THROW
        for event, callback in self._callbacks(events):
            self.monitoring.register_callback(self.tool, event, callback)
        self.monitoring.set_events(self.tool, self.events)

    def stop(self):
        """Stop the events for all threads; say so when another tool had taken our place."""
        if self.monitoring.get_tool(self.tool) != TOOL_NAME or self.monitoring.get_events(self.tool) != self.events:
            self.recorder.warn("hook-lost", "another tool switched the monitoring events off during the run")
            return
        self.monitoring.set_events(self.tool, 0)
        self.monitoring.free_tool_id(self.tool)

    def paused(self, action):
        """Run our own `action` unseen."""
        self.monitoring.set_events(self.tool, 0)
        try:
            action()
        finally:
            self.monitoring.set_events(self.tool, self.events)

    def _callbacks(self, events):  # noqa: PLR0915 - closures over the same cells
        """The event callbacks.

        They share the current thread's buffer in cells. From 3.12 on the interpreter switches threads at calls,
        backward jumps and function entries alone; after the last look at the current thread there is none of these
        until the word is written.
        """
        recorder = self.recorder
        tokens_get, new_token = recorder.tokens.get, recorder.token
        special_enter, exception_number = recorder.special_enter, recorder.exception_number
        disable = self.monitoring.DISABLE
        get_ident, id_, type_, get_frame = _thread.get_ident, id, type, sys._getframe
        types_get = recorder.types.get
        states = self.states
        # The state of the thread that wrote last, unpacked: [stream, index, generators, words, limit].
        current, state = None, [None, 1, None, None, 0]
        stream, at, generators, words, limit = state

        def switch(ident):
            nonlocal current, state, stream, at, generators, words, limit
            found = states.get(ident)
            # An ident is used again when its thread has ended; a thread whose start is still unclaimed is new.
            if found is None or found[0].words is None or recorder.is_new_thread(ident):
                fresh = recorder.stream(small=bool(states))
                found = states[ident] = [fresh, 1, {}, fresh.words, fresh.limit]
                bind(fresh, found, ident)
            # No call from here on, so that no other thread can come in between.
            state[1] = at
            state = found
            stream, at, generators, words, limit = found
            current = ident

        def bind(fresh, mine, ident):
            def position():
                return at if state is mine else mine[1]

            def rebind(new):
                nonlocal current, state
                current, state = None, [None, 1, None, None, 0]
                states.clear()
                states[ident] = [new, 1, {}, new.words, new.limit]

            fresh.position, fresh.rebind, fresh.write_pair = position, rebind, write_pair

        def flush():
            nonlocal at
            mine = state
            # While this writes, other threads may come and go and save the old index for this one.
            mine[1] = fresh = stream.flush(at)
            if state is mine:
                at = fresh

        def write(word):
            nonlocal at
            ident = get_ident()
            while ident != current:
                switch(ident)
            words[at] = word
            at += 1
            if at > limit:
                flush()

        def write_pair(word, extra):
            nonlocal at
            ident = get_ident()
            while ident != current:
                switch(ident)
            words[at] = word
            words[at + 1] = extra
            at += 2
            if at > limit:
                flush()

        def generators_here():
            ident = get_ident()
            while ident != current:
                switch(ident)
            return generators

        def py_start(code, offset):
            nonlocal at
            token = tokens_get(id_(code))
            if token is None:
                token = new_token(code, get_frame(1))
            if token > 0:
                ident = get_ident()
                while ident != current:
                    switch(ident)
                words[at] = token
                at += 1
                if at > limit:
                    flush()
                return None
            if token == IGNORED:
                return disable
            if token == SPECIAL:
                generators_here()
                special_enter(code, get_frame(1))
                return None
            begin(token, get_frame(1))
            return None

        def begin(token, frame):
            mine = generators_here()
            mine[None] = mine[id_(frame)] = mine.get(None, 0) + 1
            write(-token | ENTER)

        def py_resume(code, offset, thrown=None):
            token = tokens_get(id_(code))
            if token is None:
                token = new_token(code, get_frame(1))
            if token >= 0 or token == SPECIAL:
                return disable if thrown is None else None  # a throw cannot be disabled
            frame = get_frame(1)
            mine = generators_here()
            serial = mine.get(id_(frame))
            if serial is None:
                begin(token, frame)
            else:
                write_pair(-token | RESUME, mine[None] - serial + 1)
            return None

        def py_return(code, offset, value):
            nonlocal at
            token = tokens_get(id_(code), 0)
            if token > 0:
                ident = get_ident()
                while ident != current:
                    switch(ident)
                words[at] = token | LEAVE
                at += 1
                if at > limit:
                    flush()
                return None
            if token == IGNORED:
                return disable
            if token == SPECIAL:
                recorder.special_leave(code)
                return None
            if generators_here().pop(id_(get_frame(1)), None) is not None:
                write(-token | LEAVE)
            return None

        def py_yield(code, offset, value):
            token = tokens_get(id_(code), 0)
            if token >= 0 or token == SPECIAL:
                return disable
            if id_(get_frame(1)) in generators_here():
                write(-token | LEAVE)
            return None

        def py_unwind(code, offset, exception):
            # Needs no more frames than py_start does: at the recursion limit either both are seen or none.
            nonlocal at
            token = tokens_get(id_(code), 0)
            if token in (IGNORED, SPECIAL):
                return
            kind = types_get(id_(type_(exception)))
            if kind is None:
                try:
                    kind = exception_number(type_(exception))
                except RecursionError:
                    kind = UNKNOWN
            if token < 0:
                if generators_here().pop(id_(get_frame(1)), None) is None:
                    return
                token = -token
            ident = get_ident()
            while ident != current:
                switch(ident)
            words[at] = token | RAISE
            words[at + 1] = kind
            at += 2
            if at > limit:
                flush()

        return [
            (events.PY_START, py_start),
            (events.PY_RESUME, py_resume),
            (events.PY_THROW, py_resume),
            (events.PY_RETURN, py_return),
            (events.PY_YIELD, py_yield),
            (events.PY_UNWIND, py_unwind),
        ]


# --- the native recorder: both of the above in C (probe.c) ------------------------------------------------------


def load_native(path):
    """The compiled recorder at `path`, or None when it was built for another interpreter than this one.

    Raises ImportError when it cannot be loaded.
    """
    import _imp
    from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec

    if not path.endswith(EXTENSION_SUFFIXES[0]):
        return None
    name = "_xlocal_native"
    module = _imp.create_dynamic(ModuleSpec(name, ExtensionFileLoader(name, path), origin=path))
    _imp.exec_dynamic(module)
    sys.modules.pop(name, None)
    return module


class NativeProfileBackend(ProfileBackend):
    """sys.setprofile's events, taken in C."""

    name = "native"
    module = None
    loss = "the program set its own profile function"  # a hook in C outlives the recursion limit

    def start(self):
        recorder = self.recorder
        start_of = self._start_of if self.resume else None
        special = recorder.special_enter, recorder.special_leave
        self.module.setup(recorder.token, special[0], special[1], recorder.exception_number, start_of, None, None)
        super().start()

    def _start_of(self, code):
        return self._bytecode(code)[1]

    def _hook(self, stream):
        return _sink(self.module, stream)

    def _set(self, hook):
        self.module.install(hook)


class NativeMonitoringBackend(MonitoringBackend):
    """sys.monitoring's events, taken in C."""

    name = "native"
    module = None

    def _callbacks(self, events):
        recorder, module = self.recorder, self.module

        def new_sink():
            return _sink(module, recorder.stream(small=bool(recorder.streams)))

        special = recorder.special_enter, recorder.special_leave
        others = recorder.exception_number, None, new_sink, self.monitoring.DISABLE
        module.setup(recorder.token, special[0], special[1], *others)
        return [
            (events.PY_START, module.py_start),
            (events.PY_RESUME, module.py_resume),
            (events.PY_THROW, module.py_throw),
            (events.PY_RETURN, module.py_return),
            (events.PY_YIELD, module.py_yield),
            (events.PY_UNWIND, module.py_unwind),
        ]


def _sink(module, stream):
    sink = module.Sink(stream)
    stream.position, stream.rebind = sink.position, sink.rebind
    stream.write_pair, stream.close = sink.write_pair, sink.close
    return sink


# --- running the command ----------------------------------------------------------------------------------------


def choose_backend(config):
    """The backend's class, and why it is another than was wanted (else None).

    'auto' takes the cheapest that this interpreter has.
    """
    wanted, path, why = config["backend"], config.get("native"), None
    if wanted in ("auto", "native") and path:
        try:
            native = NativeMonitoringBackend if hasattr(sys, "monitoring") else NativeProfileBackend
            native.module = load_native(path)
            if native.module is not None:
                return native, None
        except ImportError as error:
            why = error
    if wanted == "monitoring" and not hasattr(sys, "monitoring"):
        raise SystemExit("xlocal: this Python has no sys.monitoring (3.12 or later has); use --backend setprofile")
    # Without the global lock, threads would write into each other's buffers: only setprofile has hooks for each.
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    monitoring = wanted != "setprofile" and hasattr(sys, "monitoring") and locked
    return MonitoringBackend if monitoring else ProfileBackend, why


def focus_backend():
    """The second pass's backend, from the file beside this one."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "focus.py")
    names = {"__name__": "_xlocal_focus", "__file__": path}
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), names)

    class Focus(names["FocusBackend"]):
        is_seeded, seed, thread_name = staticmethod(_is_seeded), staticmethod(_seed), staticmethod(thread_name)

        def start(self):
            frames = ProfileBackend(self.recorder)  # it knows the opcodes
            self.left_by_exception, self.is_finished = frames._left_by_exception, frames._is_finished
            super().start()

    return Focus


def watch_children(recorder, backend):
    """Follow forks, and have Python programs started from here record themselves."""
    recorder.fork_parent = os.getpid()

    def in_child():
        if not recorder.closed and not backend.stopped:
            backend.paused(recorder.restart_in_child)
        recorder.fork_parent = os.getpid()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=recorder.next_order, after_in_child=in_child)
    elif hasattr(os, "fork"):
        _wrap_fork(recorder.next_order, in_child)  # 3.6 has no such hook
    folder = os.path.join(recorder.config.get("hook") or recorder.config["out"], "hook")
    if recorder.origin is None:
        _write_hook(folder, recorder.config["text"])
    paths = [folder] + [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["XLOCAL_PARENT"] = "%d:0:0:0" % os.getpid()


def _wrap_fork(before, in_child):
    fork = os.fork

    def fork_and_record():
        before()
        pid = fork()
        if pid == 0:
            in_child()
        return pid

    fork_and_record.__name__, fork_and_record.__doc__ = "fork", fork.__doc__
    os.fork = fork_and_record


HOOK = """# Lets a Python program that a recorded one starts record itself, then steps aside.
import os, sys
folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != folder]
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import module_from_spec
hidden = PathFinder.find_spec("sitecustomize", sys.path)
if hidden is not None:
    sys.modules["sitecustomize"] = module_from_spec(hidden)
    hidden.loader.exec_module(sys.modules["sitecustomize"])
if "XLOCAL_PARENT" in os.environ:
    import types
    loader = SourceFileLoader("_xlocal_probe", %r)
    probe = types.ModuleType(loader.name)
    probe.__file__ = loader.path
    exec(loader.get_code(loader.name), probe.__dict__)
    probe.attach(os.path.join(folder, "config.json"))
"""


def _write_hook(folder, config_text):
    os.makedirs(folder, exist_ok=True)
    for name, text in (("sitecustomize.py", HOOK % os.path.abspath(__file__)), ("config.json", config_text)):
        with open(os.path.join(folder, name), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)


def attach(config_path):
    """Start recording in a process that a recorded program has started; called by the hook that it inherits."""
    config = read_config(config_path)
    config["argv"] = getattr(sys, "argv", None) or getattr(sys, "orig_argv", [""])
    origin = [int(part) for part in os.environ["XLOCAL_PARENT"].split(":")]
    if origin[0] == os.getpid():
        return  # the recorded process itself, which executed another program in its own place
    start_recording(config, "child-%d" % os.getpid(), origin)


def start_recording(config, stem, origin, main_code=None):
    """Record from here on; returns `(recorder, backend)`. The footer is written when the interpreter ends."""
    import atexit

    kind, why = (focus_backend(), None) if config.get("focus") else choose_backend(config)
    recorder = Recorder(config, stem, origin, kind.name)
    if why is not None:
        recorder.warn("native-unloadable", "the native recorder was not used: %s" % why)
    recorder.main_code = main_code
    recorder.ending = None
    backend = kind(recorder)
    watch_children(recorder, backend)
    _seed_imported(config.get("seed"))
    recorder.held = held_memory(config.get("shift", 0))

    def finish():
        stop_once(backend, recorder)
        recorder.close(recorder.ending)

    atexit.register(finish)  # first registered, so last to run: after the threads have ended
    backend.start()
    return recorder, backend


def stop_once(backend, recorder):
    if not backend.stopped:
        backend.stopped = True
        backend.stop()


def held_memory(shift):
    """Blocks of every small size, to be kept: what the program makes from here on lies at other addresses than with
    another `shift`, so that an order or a hash that follows addresses shows as a difference between repeats."""
    header = sys.getsizeof(b"")
    sizes = [size - header for size in range(40, 513, 8)]  # what obmalloc serves, in steps of either alignment
    small = [bytes(size) for size in sizes for _ in range(shift * (5 + size // 8 % 4))]
    large = [bytes(size) for size in range(512, 8192, 272) for _ in range(shift)]
    least = [object() for _ in range(shift * 7)], [(1 << 31) + number for number in range(shift * 6)]
    return small, large, least


def thread_name(thread):
    """A thread's name; '' for one of a class that may run code of its own to tell it."""
    return thread.name if type(thread) is threading.Thread else ""


def _seed_imported(seed):
    if seed is not None:
        for name in ("random", "numpy.random"):
            if name in sys.modules:
                sys.modules[name].seed(seed)


def fix_temporary_names(seed):
    """Temporary files get the same names in each run, so that paths do not make two runs differ."""
    if seed is None:
        return
    import random
    import tempfile

    names = tempfile._RandomNameSequence()
    names._rng, names._rng_pid = random.Random(seed), os.getpid()
    tempfile._name_sequence = names


class Program:
    """What is to be run: prepared like `python script.py`, `python -m module` or `pytest NODEID` would."""

    def __init__(self, config):
        import types

        self.mode, self.target = config["mode"], config["target"]
        self.module = types.ModuleType("__main__")
        self.module.__dict__["__builtins__"] = sys.modules["builtins"]
        if "__annotations__" in sys.modules["__main__"].__dict__:
            self.module.__dict__["__annotations__"] = {}
        sys.modules["__main__"] = self.module
        sys.argv[:] = config["argv"]
        self.code = None
        if self.mode == "script":
            self._prepare_script()
        elif self.mode == "module":
            sys.path.insert(0, os.getcwd() if sys.version_info >= (3, 7) else "")
        elif self.mode == "pytest":
            self.code = compile("import sys, pytest\nsys.exit(pytest.main())\n", "<pytest>", "exec")

    def _prepare_script(self):
        from importlib.machinery import SourceFileLoader

        sys.path.insert(0, os.path.dirname(os.path.realpath(self.target)))
        names = {"__file__": self.target, "__cached__": None, "__package__": None, "__spec__": None}
        self.module.__dict__.update(names, __loader__=SourceFileLoader("__main__", self.target))
        with open(self.target, "rb") as file:
            source = file.read()
        self.code = compile(source, self.target, "exec", dont_inherit=True)

    def run(self):
        if self.mode == "module":
            import runpy

            runpy._run_module_as_main(self.target, alter_argv=True)
        else:
            exec(self.code, self.module.__dict__)


def describe_exception(error):
    """The uncaught exception and its causes as plain values: `[{type, message, frames}]`, the last raised first.

    A frame is `[file, first line of its function, name, line]`, from the outermost to the raise.
    """
    described, seen = [], set()
    while error is not None and id(error) not in seen and len(described) < 10:
        seen.add(id(error))
        frames, traceback = [], error.__traceback__
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if code.co_filename != __file__:
                row = [os.path.abspath(code.co_filename), code.co_firstlineno, code.co_name, traceback.tb_lineno]
                frames.append(row)
            traceback = traceback.tb_next
        if len(frames) > 400:
            frames = frames[:100] + frames[-300:]
        described.append({"type": _type_name(type(error)), "message": _message(error), "frames": frames})
        if error.__cause__ is not None:
            error = error.__cause__
        else:
            error = None if error.__suppress_context__ else error.__context__
    return described


def _message(error):
    """The exception's text where reading it runs no code of the program."""
    arguments = error.args
    if all(type(argument) in (str, int, float, bool, type(None)) for argument in arguments):
        text = str(arguments[0]) if len(arguments) == 1 else (repr(arguments) if arguments else "")
        return text[:1000]
    return None


def run_recorded(program, backend, recorder):
    """Run the program to its end, threads included; returns `(exit status, uncaught exception or None)`.

    What Python would print of an uncaught exception is printed.
    """
    status, uncaught = 0, None
    try:
        program.run()
    except SystemExit as stop:
        status = _exit_status(stop.code)
    except BaseException as error:  # noqa: BLE001 - whatever ends the program is reported as the interpreter would
        uncaught, uncaught_error = describe_exception(error), error
        backend.paused(lambda: _print_uncaught(uncaught_error))  # the exception's __str__ is not the script's call
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
    _wait_for_threads()
    stop_once(backend, recorder)
    return status, uncaught


def _wait_for_threads():
    """What the interpreter does next anyway; done here, so that the threads are recorded to their end."""
    for thread in list(threading._active.values()):
        if thread is not threading.main_thread() and not thread.daemon and thread.ident != _thread.get_ident():
            thread.join()


def _exit_status(code):
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write("%s\n" % (code,))
    return 1


def _print_uncaught(error):
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)


def main():
    """Run the command of the configuration file that the command line names, recorded."""
    config = read_config(sys.argv[1])
    fix_temporary_names(config.get("seed"))
    try:
        program = Program(config)
    except (SyntaxError, ValueError) as error:
        _print_uncaught(error.with_traceback(None))
        return 1
    recorder, backend = start_recording(config, "main", None, program.code)
    status, uncaught = run_recorded(program, backend, recorder)
    recorder.ending = {"status": status, "uncaught": uncaught}
    return status


if __name__ == "__main__":
    _kept = sys.modules["__main__"]
    sys.exit(main())
