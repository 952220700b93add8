"""The second pass, inside the observed program: what chosen calls were given, which lines they ran, what came out.

Loaded by path from probe.py when the configuration has `focus`; the standard library alone, Python 3.6 syntax. It
records by sys.settrace, for the chosen functions only. Values are reduced to digests without running any code of
the program: by exact types, instance dictionaries and slots, to a bounded depth, number of parts and length.
"""

import bisect
import os
import re
import sys
import threading
import time
import weakref
import zlib

MOST_PARTS = 400  # parts of one value that are looked at
MOST_DEPTH = 3
MOST_ITEMS = 60  # items of one container
MOST_ATTRIBUTES = 40  # of self, each numbered apart
TEXT = 2000  # characters of a text that count, half from each end
MOST_TEXT = 1 << 20  # characters of a text, or bytes, that are summed up
MOST_SAMPLES = 4096  # numbers of a numpy array that are looked at
CUT, OPAQUE = "~", "?"  # ends of a digest: not all of the value was looked at; a part of it cannot be looked into
PREVIEW = 400  # characters of a value kept for eyes
TESTING = bool(os.environ.get("XLOCAL_TESTING"))
ROWS = 500  # rows a record
RESUMABLE = 0x20 | 0x80 | 0x200  # generator, coroutine, asynchronous generator
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
ADDRESS_TEXT = "<address or hash>"
STARTED = time.time()
TODAY = re.compile(
    "(?:%s)[T ]\\d\\d:\\d\\d(?::\\d\\d(?:\\.\\d+)?)?"
    % "|".join({time.strftime("%Y-%m-%d", moment) for moment in (time.localtime(STARTED), time.gmtime(STARTED))})
)

_plain = (int, float, complex, bool, type(None))
_dict_slot = type(type.__dict__["__dict__"])  # getset_descriptor


class _Slots:
    __slots__ = ("part",)


_member = type(_Slots.__dict__["part"])


class Digester:
    """Numbers values by content: equal numbers mean equal digests. One table for the whole process."""

    def __init__(self, write):
        self.write = write  # called with [number, digest, preview] of each new value
        self.numbers = {}
        self.sums = {0: (0, 2)}  # number -> checksum of the digest, which other processes have too; 1 cut, 2 opaque
        self.lock = threading.Lock()

    def number(self, value):
        """The number of a value's digest; 0 when it could not be taken."""
        parts, seen = [], {}
        try:
            self._walk(value, 0, parts, seen)
            text = "".join(parts)
        except (RecursionError, MemoryError):
            return 0
        depth = OPAQUE if OPAQUE in seen else CUT if CUT in seen else ""
        key = (zlib.crc32(text.encode("utf-8", "surrogatepass")), len(text), text[:64], depth)
        found = self.numbers.get(key)
        if found is None:
            with self.lock:
                found = self.numbers.get(key)
                if found is None:
                    found = len(self.numbers) + 1
                    self.write([found, "%08x%04x%s" % (key[0], key[1] & 0xFFFF, depth), text[:PREVIEW]])
                    self.numbers[key] = found
                    self.sums[found] = key[0], (CUT, OPAQUE).index(depth) + 1 if depth else 0
        return found

    def chained(self, before, value):
        """One number for all that a generator gave so far, alike in all processes: a checksum and two bits, which say
        that something was cut, that something is opaque."""
        checksum, depth = self.sums[self.number(value)]
        return zlib.crc32(b"%d %d" % (before >> 2, checksum)) << 2 | before & 3 | depth

    def _walk(self, value, depth, parts, seen):
        kind = type(value)
        if len(parts) > MOST_PARTS:
            parts.append("...")
            seen[CUT] = True
        elif kind in _plain:
            parts.append(_number_text(value, kind))
            if parts[-1] is ADDRESS_TEXT:
                seen[OPAQUE] = True
        elif kind is str:
            parts.append(_quoted(value))
            if len(value) > MOST_TEXT:
                seen[CUT] = True
        elif kind is bytes or kind is bytearray:
            parts.append("b" + _quoted(bytes(value[:TEXT]).decode("latin-1")))
            if len(value) > TEXT:
                parts.append(" of %d:%08x" % (len(value), zlib.crc32(value[:MOST_TEXT])))
            if len(value) > MOST_TEXT:
                seen[CUT] = True
        elif id(value) in seen:
            parts.append("^%d" % seen[id(value)])
        else:
            seen[id(value)] = len(seen)
            self._walk_compound(value, kind, depth, parts, seen)

    def _walk_compound(self, value, kind, depth, parts, seen):
        form = layout(kind)[0]
        if form == "object":
            self._object(value, kind, depth, parts, seen)
        elif form == "callable":
            parts.append(_callable_text(value, kind))
            if kind is _method or (kind is _function and (value.__closure__ or value.__name__ == "<lambda>")):
                seen[OPAQUE] = True
        elif form is tuple:
            self._items(_name(kind), "()", tuple.__iter__(value), tuple.__len__(value), depth, parts, seen)
        elif form is list:
            self._items(_name(kind), "[]", list.__iter__(value), list.__len__(value), depth, parts, seen)
        elif form is dict:
            self._pairs(_name(kind), dict.items(value), dict.__len__(value), depth, parts, seen)
        elif form is set or form is frozenset:
            self._unordered(value, kind, form, depth, parts, seen)
        elif form is str:
            parts.append(_name(kind) + _quoted(str.__str__(value)))
        elif form is int:
            parts.append(_name(kind) + _number_text(int.__int__(value), int))
        elif form is float:
            parts.append(_name(kind) + float.__repr__(value))
        else:  # an exception
            parts.append(_name(kind))
            self._walk(BaseException.__dict__["args"].__get__(value), depth + 1, parts, seen)

    def _items(self, name, brackets, items, length, depth, parts, seen):
        parts.append((name if name not in ("tuple", "list") else "") + brackets[0])
        shown = MOST_ITEMS if depth < MOST_DEPTH else 0
        for number, item in enumerate(items):
            if number >= shown:
                parts.append("... of %d" % length)
                seen[CUT] = True
                break
            if number:
                parts.append(", ")
            self._walk(item, depth + 1, parts, seen)
        parts.append("," + brackets[1] if length == 1 and brackets == "()" else brackets[1])

    def _pairs(self, name, items, length, depth, parts, seen):
        parts.append((name if name != "dict" else "") + "{")
        shown = MOST_ITEMS if depth < MOST_DEPTH else 0
        for number, (key, item) in enumerate(items):
            if number >= shown:
                parts.append("... of %d" % length)
                seen[CUT] = True
                break
            if number:
                parts.append(", ")
            self._walk(key, depth + 1, parts, seen)
            parts.append(": ")
            self._walk(item, depth + 1, parts, seen)
        parts.append("}")

    def _unordered(self, value, kind, base, depth, parts, seen):
        length = base.__len__(value)
        texts = ["... of %d" % length] if length else []
        if depth < MOST_DEPTH and length <= MOST_ITEMS:
            texts = []
            for item in base.__iter__(value):
                inner, known = [], dict(seen)
                self._walk(item, depth + 1, inner, known)
                texts.append("".join(inner))
                seen.update((flag, True) for flag in (CUT, OPAQUE) if flag in known)
        elif length:
            seen[CUT] = True
        parts.append("%s{%s}" % (_name(kind), ", ".join(sorted(texts))))

    def _object(self, value, kind, depth, parts, seen):
        name = _name(kind)
        _, dictionary, slots = layout(kind)
        if dictionary is None and not slots:
            self._closed(value, kind, depth, parts, seen)
            return
        parts.append("<" + name)
        if depth < MOST_DEPTH:
            for key, item in attributes(value, kind):
                parts.append(" %s=" % (key,))
                self._walk(item, depth + 1, parts, seen)
        else:
            seen[CUT] = True
        parts.append(">")

    def _closed(self, value, kind, depth, parts, seen):
        """An object of a type in C that holds nothing in sight: a few of the standard library's are read by their own
        methods, which run no code of the program; of the others only the type is known."""
        name = type.__getattribute__(kind, "__module__"), _name(kind)
        if name == ("numpy", "ndarray"):
            parts.append(_array_text(value))
            if value.size > MOST_SAMPLES or value.dtype.hasobject:
                seen[CUT] = True
        elif kind is object:
            parts.append("<object>")
        else:
            reader = _reader(kind, name)
            read = None if reader is None else reader(value)
            if type(read) is list:
                self._items(_name(kind), "[]", iter(read), len(read), depth, parts, seen)
            elif read is not None:
                parts.append("<%s %s>" % (name[1], read))
            else:
                parts.append("<%s>" % name[1])
                seen[OPAQUE] = True


def bases(kind):
    """The method resolution order without asking a metaclass; a class that is still being made has none yet."""
    return type.__dict__["__mro__"].__get__(kind) or (object,)


# Id of a type -> (weak reference to it, its layout): keeps no type alive and asks none for its hash.
_layouts = {}  # type: dict[int, object]
_BUILT_IN = (tuple, list, dict, set, frozenset, str, int, float, BaseException)


def layout(kind):
    """`(form, dictionary, slots)` of a type, found once and without asking its metaclass.

    The form is the built-in type whose methods read the value, `callable` or `object`; the dictionary is the descriptor
    of the instances' `__dict__` or None; slots are `(name, descriptor)`.
    """
    known = _layouts.get(id(kind))
    if known is None or known[0]() is not kind:
        known = _layouts[id(kind)] = (weakref.ref(kind), _read_layout(kind))
    return known[1]


def _read_layout(kind):
    mro = bases(kind)
    dictionary, slots = None, []
    for base in mro:
        names = type.__dict__["__dict__"].__get__(base)
        held = names.get("__dict__")
        if dictionary is None and type(held) is _dict_slot:
            dictionary = held
        slots += [(name, member) for name, member in list(names.items()) if type(member) is _member]
    if kind is _function or kind is _builtin or kind is _method or any(base is type for base in mro):
        return "callable", dictionary, slots
    for built_in in _BUILT_IN:
        if any(base is built_in for base in mro):
            return built_in, dictionary, slots
    return "object", dictionary, slots


def attributes(value, kind):
    """`(name, value)` of the instance dictionary and the slots, without asking the object itself."""
    _, dictionary, slots = layout(kind)
    found = []
    if dictionary is not None:
        try:
            held = dictionary.__get__(value)
        except (AttributeError, TypeError):
            held = None
        if type(held) is dict:
            found = [item for item in list(held.items())[:MOST_ITEMS] if type(item[0]) is str]
    for name, member in slots:
        if len(found) >= MOST_ITEMS:
            break
        try:
            found.append((name, member.__get__(value)))
        except AttributeError:
            pass  # an empty slot
    return found


def _reader(kind, name):
    """The function that reads values of a type in C; None for one that is not known. `name` is (module, name)."""
    if id(kind) in _BUILT_IN_READERS:
        return _BUILT_IN_READERS[id(kind)]
    module = sys.modules.get(name[0])
    if module is None or type(kind) is not type:
        return None
    if name in _READERS:
        return _READERS[name] if vars(module).get(name[1]) is kind else None
    generic = vars(module).get("generic") if name[0] == "numpy" else None
    if generic is not None and any(base is generic for base in bases(kind)):
        return lambda value: value.tobytes().hex()
    return None


def _time_text(value):
    return "%s %s" % (value.isoformat(), value.fold) if value.tzinfo is None else None


def _pattern_text(value):
    return "%r %d" % (value.pattern, value.flags)


_READERS = {
    ("datetime", "date"): lambda value: value.isoformat(),
    ("datetime", "timedelta"): lambda value: "%d %d %d" % (value.days, value.seconds, value.microseconds),
    ("datetime", "datetime"): _time_text,
    ("datetime", "time"): _time_text,
    ("decimal", "Decimal"): str,
    ("array", "array"): lambda value: "%s %d %08x" % (value.typecode, len(value), zlib.crc32(value.tobytes())),
    ("collections", "deque"): list,
    ("_io", "StringIO"): lambda value: _quoted(value.getvalue()),
    ("_io", "BytesIO"): lambda value: _quoted(value.getvalue().decode("latin-1")),
}
_BUILT_IN_READERS = {
    id(type({}.keys())): list,
    id(type({}.values())): list,
    id(type({}.items())): list,
    id(range): repr,
    id(type(os)): lambda value: str(vars(value).get("__name__")),
    id(type(ADDRESS)): _pattern_text,
}


def _number_text(value, kind):
    """A number; but no address, hash or time of day, which differ from run to run though nothing else does."""
    if kind is int:
        size = value if value >= 0 else -value
        if size > 1 << 64:
            return "int of %d bits ...%x" % (value.bit_length(), value & ((1 << 128) - 1))
        # Where programs lie in memory, and what default hashes look like.
        if 0x500000000000 <= size < 0x800000000000 or 1 << 56 <= size <= 1 << 63:
            return ADDRESS_TEXT
    if (kind is int or kind is float) and abs(value - STARTED) < 86400:
        return "now"
    return repr(value)


def _quoted(text):
    length, checksum = len(text), 0
    if length > TEXT:
        checksum = zlib.crc32(text[:MOST_TEXT].encode("utf-8", "surrogatepass"))
        text = text[: TEXT // 2] + "..." + text[-TEXT // 2 :]
    cleaned = ADDRESS.sub("0x", text) if "0x" in text else text
    if ":" in text:
        cleaned = TODAY.sub("now", cleaned)
    return "'" + cleaned + ("'" if length <= TEXT else "' of %d:%08x" % (length, checksum))


def _name(kind):
    return str(type.__getattribute__(kind, "__name__"))


_function = type(bases)
_builtin = type(len)
_method = type(Digester(None).number)


def _callable_text(value, kind):
    if kind is _method:
        return "method:" + value.__func__.__qualname__ if type(value.__func__) is _function else "method"
    if kind is not _function and kind is not _builtin:  # a class
        return "class:" + str(type.__dict__["__qualname__"].__get__(value))
    return "function:" + str(value.__qualname__)


def _array_text(value):
    """Shape, type and content of a numpy array, whose own methods are C code; large ones by a sample."""
    text = "array%s%s" % (value.shape, value.dtype)
    if value.dtype.hasobject or value.size == 0:
        return text
    flat = value.reshape(-1)
    step = max(1, value.size // MOST_SAMPLES)
    return "%s:%08x" % (text, zlib.crc32(flat[::step].tobytes()))


class FocusBackend:
    """Records the chosen calls by sys.settrace; the same `start`, `stop` and `paused` as the probe's backends.

    The probe's subclass adds `left_by_exception(frame)`, `is_finished(frame)` (a generator's, for good),
    `is_seeded(filename)`, `seed(filename, seed)` and `thread_name(thread)`.
    """

    name = "focus"
    stopped = False
    failed = False

    def __init__(self, recorder):
        self.recorder = recorder
        focus = recorder.config["focus"]
        self.values = focus.get("values", True)
        self.deadline = time.time() + focus.get("seconds", 60)
        self.chosen = {}
        for number, (filename, line, name, ranges) in enumerate(focus["functions"]):
            # Borders of the ranges: a call is chosen when an odd number of them lies at or below its index.
            self.chosen[filename, line, name] = (number, [border for pair in sorted(ranges) for border in pair])
        self.by_code = {}  # id(code) -> None or [number, borders, arguments], and the code; codes are kept alive by it
        self.digester = Digester(lambda row: recorder.writer.write_json(b"D", 0, row))
        self.tables = {}
        self.streams = 0
        self.lock = threading.Lock()

    def start(self):
        self.previous = sys.gettrace()
        self.previous_threads = threading._trace_hook
        if self.previous is not None:
            self.recorder.warn("focus-replaced", "another trace function was active and did not see this run")
        threading.settrace(self._first_event)
        self.rows = []
        self.hook = self._hook(0)
        sys.settrace(self.hook)

    def stop(self):
        """Take the trace function off; say so when it was not there any more."""
        if sys.gettrace() is not self.hook:
            self.recorder.warn(
                "focus-lost",
                "the trace function was gone when the script ended, so lines and values after that are missing",
            )
        sys.settrace(self.previous)
        threading.settrace(self.previous_threads)
        self._flush(0)

    def paused(self, action):
        """Run our own `action` unseen, in the thread that calls."""
        hook = sys.gettrace()
        sys.settrace(None)
        try:
            action()
        finally:
            sys.settrace(hook)

    def _first_event(self, frame, event, arg):
        with self.lock:
            self.streams += 1
            number = self.streams
        name = self.thread_name(threading._active.get(threading.get_ident()))
        self.recorder.writer.write_json(b"T", 0, [number, name])
        hook = self._hook(number)
        sys.settrace(hook)
        return hook(frame, event, arg)

    def _choice(self, code):
        found = self.chosen.get((os.path.abspath(code.co_filename), code.co_firstlineno, code.co_name))
        if found is None:
            self.by_code[id(code)] = (None, code)
            return self._seeding(code) if code.co_name == "<module>" and self.is_seeded(code.co_filename) else None
        count = code.co_argcount + getattr(code, "co_kwonlyargcount", 0)
        count += bool(code.co_flags & 0x4) + bool(code.co_flags & 0x8)
        choice = [found[0], found[1], code.co_varnames[:count]]
        self.by_code[id(code)] = (choice, code)
        return choice

    def _seeding(self, code):
        """A trace function for a module that is being imported and must be seeded when that is done."""

        def trace(frame, event, arg):
            if event == "return":
                self.seed(code.co_filename, self.recorder.config.get("seed"))
            return trace

        return trace

    def _entry(self, table, key):
        """The number of a row of values in one of the tables, written when it is new."""
        known = self.tables.setdefault(table, {})
        number = known.get(key)
        if number is None:
            number = known[key] = len(known) + 1
            self.recorder.writer.write_json(table, 0, [number, list(key)])
        return number

    def _hook(self, thread):
        """The trace function of one thread."""
        by_code, choose = self.by_code, self._choice
        counts = {}  # function number -> calls begun in this thread
        running = {}  # id(frame) of a generator that is not finished -> its call

        def begin(frame):
            """The trace function of a call that is to be seen, or None."""
            code = frame.f_code
            known = by_code.get(id(code))
            choice = known[0] if known is not None else choose(code)
            if choice is None or callable(choice):
                return choice
            call = running.get(id(frame)) if code.co_flags & RESUMABLE else None
            if call is None or frame.f_lasti < 0:
                index = counts.get(choice[0], 0)
                counts[choice[0]] = index + 1
                if not bisect.bisect_right(choice[1], index) % 2:
                    return None
                call = _Call(self, choice, thread, index, frame, running)
                if code.co_flags & RESUMABLE:
                    running[id(frame)] = call
            return call.trace

        def hook(frame, event, arg):
            try:
                return begin(frame)
            except Exception as error:  # noqa: BLE001 - nothing may be raised into the program
                return self.fail(error)

        return hook

    def fail(self, error):
        """Say once that calls were not seen; in our own tests the error surfaces."""
        if TESTING and not isinstance(error, RecursionError):
            raise error
        with self.lock:
            if not self.failed:
                self.failed = True
                self.recorder.warn("focus-failed", "some calls could not be seen closely: %s" % type(error).__name__)

    def _row(self, row):
        with self.lock:
            self.rows.append(row)
            full = len(self.rows) >= ROWS
        if full:
            self._flush(ROWS)

    def _flush(self, least):
        with self.lock:
            rows, self.rows = self.rows, []
        if rows:
            self.recorder.writer.write_json(b"V", 0, rows)


class _Call:
    """One call while it runs; its trace function gathers lines and, at each return or yield, values."""

    __slots__ = ("backend", "before", "choice", "error", "index", "lines", "out", "running", "thread", "trace")

    def __init__(self, backend, choice, thread, index, frame, running):
        self.backend, self.choice, self.thread, self.index = backend, choice, thread, index
        self.running = running
        self.lines, self.error, self.out = {}, None, 0
        self.before = self._arguments(frame)
        self.trace = self._trace  # one bound method, made once

    def _arguments(self, frame):
        backend = self.backend
        if not backend.values or time.time() > backend.deadline:
            return 0
        local = frame.f_locals
        pairs = []
        for name in self.choice[2]:
            if name in local:
                pairs.append(name)
                pairs.append(backend.digester.number(local[name]))
        if "self" in pairs[:1]:
            value = local["self"]
            for name, held in attributes(value, type(value))[:MOST_ATTRIBUTES]:
                pairs.append("self." + name)
                pairs.append(backend.digester.number(held))
        return backend._entry(b"A", tuple(pairs))

    def _trace(self, frame, event, arg):
        try:
            if event == "line":
                line = frame.f_lineno
                self.lines[line] = self.lines.get(line, 0) + 1
                self.error = None
            elif event == "exception":
                self.error = arg[0]
            elif event == "return":
                self._leave(frame, arg)
        except Exception as error:  # noqa: BLE001 - as in the hook
            return self.backend.fail(error)
        return self.trace

    def _leave(self, frame, value):
        """A return, a yield or an unwinding. A generator's later rows replace its earlier ones for the reader."""
        backend = self.backend
        error = 0
        if value is None and self.error is not None and backend.left_by_exception(frame):
            error = backend.recorder.exception_number(self.error)
        generator = frame.f_code.co_flags & RESUMABLE
        if generator and (error or backend.is_finished(frame)):
            self.running.pop(id(frame), None)
        if backend.values and self.before:
            if generator:
                # What it yields and returns is chained into one number; negative, for it is no value's.
                self.out = self.out if error else -backend.digester.chained(-self.out, value)
            else:
                hashed = frame.f_code.co_name == "__hash__"
                self.out = 0 if error or hashed else backend.digester.number(value)
        after = self._arguments(frame) if self.before else 0
        lines = []
        for line in sorted(self.lines):
            lines.append(line)
            lines.append(self.lines[line])
        taken = backend._entry(b"L", tuple(lines))
        backend._row([self.choice[0], self.thread, self.index, self.before, self.out, after, error, taken])
