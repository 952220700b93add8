"""The second pass, inside the observed program: what chosen calls were given, which lines they ran, what came out.

Loaded by path from probe.py when the configuration has `focus`; the standard library alone, Python 3.6 syntax. It
records by sys.settrace, for the chosen functions only. Values are reduced to digests without running any code of
the program: by exact types, instance dictionaries and slots, to a bounded depth, number of parts and length.
"""

import bisect
import itertools
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
COROUTINE = 0x80
FIRST_YIELDS = 3  # values of a generator kept to be shown
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
ADDRESS_TEXT, NOW = "<address or hash>", "now"
STARTED = time.time()
TODAY = re.compile(
    "(?:%s)[T ]\\d\\d:\\d\\d(?::\\d\\d(?:\\.\\d+)?)?"
    % "|".join({time.strftime("%Y-%m-%d", moment) for moment in (time.localtime(STARTED), time.gmtime(STARTED))})
)

# Types are told apart by id alone: a metaclass may have an `__eq__` of the program's own.
_plain = {id(kind) for kind in (int, float, complex, bool, type(None))}
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
        except (RecursionError, MemoryError, RuntimeError):  # the last: another thread changed it meanwhile
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
        elif id(kind) in _plain:
            self._number(value, kind, parts, seen)
        elif kind is str:
            self._text(value, parts, seen)
        elif kind is bytes or kind is bytearray:
            parts.append(repr(value[:TEXT]))
            if len(value) > TEXT:
                parts.append(" of %d:%08x" % (len(value), zlib.crc32(value[:MOST_TEXT])))
            if len(value) > MOST_TEXT:
                seen[CUT] = True
        elif id(value) in seen:
            parts.append("^%d" % seen[id(value)])
        else:
            seen[id(value)] = len(seen)
            self._walk_compound(value, kind, depth, parts, seen)

    def _number(self, value, kind, parts, seen):
        parts.append(_number_text(value, kind))
        if parts[-1] is ADDRESS_TEXT or parts[-1] is NOW:
            seen[OPAQUE] = True
        elif kind is int and value.bit_length() > 8 * MOST_TEXT:
            seen[CUT] = True

    def _text(self, value, parts, seen):
        text, left_out = _quoted(value)
        parts.append(text)
        if left_out:
            seen[OPAQUE] = True
        elif len(value) > MOST_TEXT:
            seen[CUT] = True

    def _walk_compound(self, value, kind, depth, parts, seen):
        form = layout(kind)[0]
        if form == "object":
            self._object(value, kind, depth, parts, seen)
        elif form == "callable":
            self._callable(value, kind, depth, parts, seen)
        else:
            held = attributes(value, kind) if form is not kind else ()
            parts.append("<" if held else "")
            self._built_in(value, kind, form, depth, parts, seen)
            if held:
                self._attributes(held, depth, parts, seen)
                parts.append(">")

    def _built_in(self, value, kind, form, depth, parts, seen):
        if form is tuple:
            self._items(_name(kind), "()", tuple.__iter__(value), tuple.__len__(value), depth, parts, seen)
        elif form is list:
            self._items(_name(kind), "[]", list.__iter__(value), list.__len__(value), depth, parts, seen)
        elif form is dict:
            self._pairs(_name(kind), dict.items(value), dict.__len__(value), depth, parts, seen)
        elif form is set or form is frozenset:
            self._unordered(value, kind, form, depth, parts, seen)
        elif form is str or form is int or form is float:
            parts.append(_name(kind) + "(")
            if form is str:
                self._text(str.__str__(value), parts, seen)
            else:
                self._number(form.__pos__(value) if form is float else form.__int__(value), form, parts, seen)
            parts.append(")")
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
        hidden = layout(kind)[3]
        reader = _reader(kind, (_module(kind), _name(kind))) if hidden else None
        if reader is not None:
            self._closed(value, kind, reader, depth, parts, seen)
        elif kind is object:
            parts.append("<object>")
        else:
            parts.append("<" + _name(kind))
            self._attributes(attributes(value, kind), depth, parts, seen)
            parts.append(">")
            if hidden:
                seen[OPAQUE] = True

    def _attributes(self, held, depth, parts, seen):
        if held and depth >= MOST_DEPTH:
            seen[CUT] = True
            return
        for key, item in held:
            parts.append(" %s=" % (key,))
            self._walk(item, depth + 1, parts, seen)

    def _callable(self, value, kind, depth, parts, seen):
        """A function, method or class: by its name, and a function by its defaults, too. What else it holds (a closure,
        the object of a method) or is (a lambda, a class that its module does not have by this name) is not told."""
        if kind is _function:
            parts.append("function:" + value.__qualname__)
            if value.__defaults__:
                self._walk(value.__defaults__, depth + 1, parts, seen)
            if value.__closure__ or value.__kwdefaults__ or value.__name__ == "<lambda>":
                seen[OPAQUE] = True
        elif kind is _method:
            parts.append("method:" + value.__func__.__qualname__ if type(value.__func__) is _function else "method")
            seen[OPAQUE] = True
        elif kind is _builtin:
            parts.append("function:" + value.__name__)
            if value.__self__ is not None and type(value.__self__) is not type(os):
                seen[OPAQUE] = True
        else:
            parts.append("class:" + _qualname(value))
            if not _is_found(value):
                seen[OPAQUE] = True

    def _closed(self, value, kind, reader, depth, parts, seen):
        """An object of a type in C that is read by its own methods, which run no code of the program."""
        if reader is _array_text:
            self._array(value, depth, parts, seen)
        elif reader is _in_order:
            self._items(_name(kind), "[]", iter(value), len(value), depth, parts, seen)
        else:
            read = reader(value)
            parts.append("<%s " % _name(kind))
            if type(read) is tuple:
                self._text(read[0], parts, seen)
            else:
                parts.append(str(read))
            parts.append(">")
            if read is None:
                seen[OPAQUE] = True
            elif reader is _native_text and len(value) * value.itemsize > MOST_TEXT:
                seen[CUT] = True

    def _array(self, value, depth, parts, seen):
        few = depth < MOST_DEPTH and value.size <= MOST_ITEMS and not value.dtype.hasobject
        parts.append("<array %s %s" % (value.shape, value.dtype))
        if few:
            parts.append(" ")
            self._items("", "[]", iter(value.reshape(-1).tolist()), value.size, depth, parts, seen)
        else:
            parts.append(_array_text(value))
        parts.append(">")
        if value.size > MOST_SAMPLES or value.dtype.hasobject:
            seen[CUT] = True


def bases(kind):
    """The method resolution order without asking a metaclass; a class that is still being made has none yet."""
    return type.__dict__["__mro__"].__get__(kind) or (object,)


# Id of a type -> (weak reference to it, its layout): keeps no type alive and asks none for its hash.
_layouts = {}  # type: dict[int, object]
_BUILT_IN = (tuple, list, dict, set, frozenset, str, int, float, BaseException)


def layout(kind):
    """`(form, dictionary, slots, hidden)` of a type, found once and without asking its metaclass.

    The form is the built-in type whose methods read the value, `callable` or `object`; the dictionary is the descriptor
    of the instances' `__dict__` or None; slots are `(name, descriptor)`; hidden says that an instance holds more than
    these, as those of types in C do.
    """
    known = _layouts.get(id(kind))
    if known is None or known[0]() is not kind:
        known = _layouts[id(kind)] = (weakref.ref(kind), _read_layout(kind))
    return known[1]


def _read_layout(kind):
    mro = bases(kind)
    dictionary, slots, own = None, [], 0
    for base in mro:
        names = type.__dict__["__dict__"].__get__(base)
        held = names.get("__dict__")
        if dictionary is None and (type(held) is _dict_slot or type(held) is _member):
            dictionary = held
        members = [(name, member) for name, member in list(names.items()) if type(member) is _member]
        slots += [(name, member) for name, member in members if name not in _NO_PARTS]
        own += len(members)
    hidden = _sized(kind, "basicsize") > _sized(object, "basicsize") + _POINTER * (
        own + (_sized(kind, "dictoffset") > 0) + (_sized(kind, "weakrefoffset") > 0)
    )
    if kind is _function or kind is _builtin or kind is _method or any(base is type for base in mro):
        return "callable", dictionary, slots, hidden
    for built_in in _BUILT_IN:
        if any(base is built_in for base in mro):
            return built_in, dictionary, slots, hidden
    return "object", dictionary, slots, hidden


_NO_PARTS = ("__dict__", "__suppress_context__")
_POINTER = tuple.__itemsize__


def _sized(kind, what):
    return type.__dict__["__%s__" % what].__get__(kind)


def attributes(value, kind):
    """`(name, value)` of the instance dictionary and the slots, without asking the object itself."""
    _, dictionary, slots, _ = layout(kind)
    found = []
    if dictionary is not None:
        try:
            held = dictionary.__get__(value)
        except (AttributeError, TypeError):
            held = None
        if type(held) is dict:
            found = [item for item in itertools.islice(dict.items(held), MOST_ITEMS) if type(item[0]) is str]
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
    if type(module) is not type(os):
        return None
    if name in _READERS:
        return _READERS[name] if vars(module).get(name[1]) is kind else None
    numpy = vars(sys.modules["numpy"]) if "numpy" in sys.modules else {}
    for base_name, reader in ("generic", _scalar_text), ("dtype", _dtype_text):
        if base_name in numpy and any(base is numpy[base_name] for base in bases(kind)):
            return reader
    return None


def _in_order(value):
    """Stands for a container in C that is read by iterating over it."""
    return iter(value)


def _dtype_text(value):
    return value.str if value.names is None else None


def _scalar_text(value):
    plain = value.item()
    return repr(plain) if id(type(plain)) in _plain else value.tobytes().hex()


def _array_text(value):
    """A checksum of the content of a numpy array, whose own methods are C code; of a large one by a sample."""
    if value.dtype.hasobject:
        return ""
    step = max(1, value.size // MOST_SAMPLES)
    return ":%08x" % zlib.crc32(value.reshape(-1)[::step].tobytes())


def _native_text(value):
    """An array.array."""
    items = memoryview(value)[: MOST_TEXT // value.itemsize]
    return "%s %d:%08x" % (value.typecode, len(value), zlib.crc32(items))


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
    ("array", "array"): _native_text,
    ("collections", "deque"): _in_order,
    ("_io", "StringIO"): lambda value: (value.getvalue(),),
    ("_io", "BytesIO"): lambda value: (value.getvalue().decode("latin-1"),),
    ("numpy", "ndarray"): _array_text,
}
_BUILT_IN_READERS = {
    id(type({}.keys())): _in_order,
    id(type({}.values())): _in_order,
    id(type({}.items())): _in_order,
    id(range): repr,
    id(type(os)): lambda value: str(vars(value).get("__name__")),
    id(type(ADDRESS)): _pattern_text,
}


def _number_text(value, kind):
    """A number; but no address, hash or time of day, which differ from run to run though nothing else does."""
    if kind is int:
        size = value if value >= 0 else -value
        if size > 1 << 64:
            bits = value.bit_length()
            whole = 0 if bits > 8 * MOST_TEXT else zlib.crc32(value.to_bytes(bits // 8 + 1, "little", signed=True))
            return "int of %d bits ...%x:%08x" % (bits, value & ((1 << 128) - 1), whole)
        # Where programs lie in memory, and what default hashes look like.
        if 0x500000000000 <= size < 0x800000000000 or 1 << 56 <= size <= 1 << 63:
            return ADDRESS_TEXT
    if (kind is int or kind is float) and abs(value - STARTED) < 86400:
        return NOW
    return repr(value)


def _quoted(text):
    """`(the text as its literal, whether addresses or times of day were left out of it)`."""
    length, checksum = len(text), 0
    if length > TEXT:
        checksum = zlib.crc32(text[:MOST_TEXT].encode("utf-8", "surrogatepass"))
        text = text[: TEXT // 2] + "..." + text[-TEXT // 2 :]
    cleaned = ADDRESS.sub("0x", text) if "0x" in text else text
    if ":" in text:
        cleaned = TODAY.sub(NOW, cleaned)
    end = "" if length <= TEXT else " of %d:%08x" % (length, checksum)
    return repr(cleaned) + end, cleaned is not text and cleaned != text


def _name(kind):
    return type.__dict__["__name__"].__get__(kind)


def _qualname(kind):
    return type.__dict__["__qualname__"].__get__(kind)


def _module(kind):
    """The name of a class's module; '' where the program put something else there."""
    name = type.__dict__["__module__"].__get__(kind)
    return name if type(name) is str else ""


def _is_found(kind):
    """Whether a class is what its module has by its name; another run then has no other one by the same name."""
    module = sys.modules.get(_module(kind))
    names = vars(module) if type(module) is type(os) else {}
    found = None
    for name in _qualname(kind).split("."):
        found = names.get(name)
        if not any(base is type for base in bases(type(found))):
            return False
        names = type.__dict__["__dict__"].__get__(found)
    return found is kind


_function = type(bases)
_builtin = type(len)
_method = type(Digester(None).number)


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
        free = tuple(name for name in code.co_freevars if name != "__class__")
        choice = [found[0], found[1], code.co_varnames[:count] + free]
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

    __slots__ = (
        "backend", "before", "choice", "error", "first", "index", "lines", "out", "owner", "running", "thread", "trace"
    )  # fmt: skip

    def __init__(self, backend, choice, thread, index, frame, running):
        self.backend, self.choice, self.thread, self.index = backend, choice, thread, index
        self.running = running
        self.lines, self.error, self.out, self.first, self.owner = {}, None, 0, [], 0
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
            self.owner = id(value)
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
        finished = bool(generator) and backend.is_finished(frame)
        if generator and (error or finished):
            self.running.pop(id(frame), None)
        if backend.values and self.before:
            if generator & ~COROUTINE:
                if not error:
                    self._gave(value, finished)
            elif generator:
                # What it awaits is between it and its loop.
                self.out = backend.digester.number(value) if finished and not error else 0
            else:
                hashed = frame.f_code.co_name == "__hash__"
                self.out = 0 if error or hashed else backend.digester.number(value)
        after = self._arguments(frame) if self.before else 0
        lines = []
        for line in sorted(self.lines):
            lines.append(line)
            lines.append(self.lines[line])
        taken = backend._entry(b"L", tuple(lines))
        out = [self.out, *self.first] if self.first else self.out
        backend._row([self.choice[0], self.thread, self.index, self.before, out, after, error, taken, self.owner])

    def _gave(self, value, ended):
        """What a generator yields, and what it returns, is chained into one number; negative, for it is no value's."""
        digester = self.backend.digester
        self.out = -digester.chained(-self.out, value)
        if not ended and len(self.first) <= FIRST_YIELDS:
            self.first.append(digester.number(value))
