/* The native recorder: the hooks of probe.py in C, with the same words in the same buffers.

   Built by native.py for one interpreter, loaded by probe.py. Python 3.6 to 3.11: a profile function for each thread;
   3.12 and later: callbacks of sys.monitoring. Python code runs only when a code object or an exception type is seen
   for the first time, when a buffer is full, and for the few codes that probe.py marks as special. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>
#include <stdint.h>

#ifdef Py_GIL_DISABLED
#error "free-threaded builds of Python are not supported"
#endif

enum { ENTER, LEAVE, RAISE, RESUME }; /* see probe.py */
enum { UNKNOWN = 1, IGNORED = 0, SPECIAL = -1 };
enum { ROOM = 200 }; /* frames that our Python code may use at the recursion limit */

/* --- a table from addresses to numbers: open addressing, linear probing ---------------------------------------- */

typedef struct {
    uintptr_t key; /* 0: free */
    int32_t value, extra;
} Slot;

typedef struct {
    Slot *slots;
    size_t mask, used;
} Table;

static inline size_t table_home(const Table *table, uintptr_t key)
{
    return (size_t)((key >> 4) * (uintptr_t)0x9E3779B97F4A7C15ULL >> 16) & table->mask;
}

static inline Slot *table_find(const Table *table, uintptr_t key)
{
    if (table->slots == NULL)
        return NULL;
    for (size_t at = table_home(table, key);; at = (at + 1) & table->mask) {
        Slot *slot = &table->slots[at];
        if (slot->key == key)
            return slot;
        if (slot->key == 0)
            return NULL;
    }
}

static int table_put(Table *table, uintptr_t key, int32_t value, int32_t extra)
{
    Slot *known = table_find(table, key);
    if (known == NULL && (table->slots == NULL || table->used * 2 > table->mask)) {
        Table grown = {NULL, table->slots == NULL ? 63 : table->mask * 2 + 1, 0};
        grown.slots = calloc(grown.mask + 1, sizeof(Slot));
        if (grown.slots == NULL)
            return -1;
        for (size_t at = 0; table->slots != NULL && at <= table->mask; at++)
            if (table->slots[at].key != 0)
                table_put(&grown, table->slots[at].key, table->slots[at].value, table->slots[at].extra);
        free(table->slots);
        *table = grown;
    }
    if (known == NULL) {
        size_t at = table_home(table, key);
        while (table->slots[at].key != 0)
            at = (at + 1) & table->mask;
        known = &table->slots[at];
        table->used++;
    }
    known->key = key;
    known->value = value;
    known->extra = extra;
    return 0;
}

static void table_remove(Table *table, Slot *slot)
{
    size_t hole = (size_t)(slot - table->slots), at = hole;
    for (;;) { /* move back what would no longer be found beyond the hole */
        at = (at + 1) & table->mask;
        if (table->slots[at].key == 0)
            break;
        size_t home = table_home(table, table->slots[at].key);
        if (((at - home) & table->mask) >= ((at - hole) & table->mask)) {
            table->slots[hole] = table->slots[at];
            hole = at;
        }
    }
    table->slots[hole].key = 0;
    table->used--;
}

static void table_clear(Table *table)
{
    free(table->slots);
    memset(table, 0, sizeof *table);
}

/* --- what all threads share --------------------------------------------------------------------------------------- */

static Table tokens; /* code -> token, and where a generator's first observed instruction is */
static Table types;  /* exception type -> number */
static PyObject *new_token, *special_enter, *special_leave, *exception_number, *start_of, *new_sink, *disable;

/* Python code of ours runs even at the recursion limit, where the program's may not. */
typedef struct {
    PyThreadState *thread;
#if PY_VERSION_HEX < 0x030A0000
    int overflowed;
#endif
} Room;

static void room_add(PyThreadState *thread, int frames)
{
#if PY_VERSION_HEX >= 0x030C0000
    thread->py_recursion_remaining += frames;
#if PY_VERSION_HEX < 0x030E0000
    thread->c_recursion_remaining += frames;
#endif
#elif PY_VERSION_HEX >= 0x030B0000
    thread->recursion_remaining += frames;
#else
    thread->recursion_depth -= frames;
#endif
}

static Room room_make(void)
{
    Room room = {PyThreadState_Get()};
    room_add(room.thread, ROOM);
#if PY_VERSION_HEX < 0x030A0000
    room.overflowed = room.thread->overflowed;
    room.thread->overflowed = 0;
#endif
    return room;
}

static void room_end(Room room)
{
    room_add(room.thread, -ROOM);
#if PY_VERSION_HEX < 0x030A0000
    room.thread->overflowed = room.overflowed;
#endif
}

/* Calls into probe.py. A failure there is told on stderr and costs the event, never the program. */
static PyObject *call_ours(PyObject *function, PyObject *first, PyObject *second)
{
    Room room = room_make();
    PyObject *result = PyObject_CallFunctionObjArgs(function, first, second, NULL);
    if (result == NULL)
        PyErr_WriteUnraisable(function);
    room_end(room);
    return result;
}

static int32_t number_from(PyObject *result, int32_t otherwise)
{
    long number = result == NULL ? otherwise : PyLong_AsLong(result);
    if (number == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        number = otherwise;
    }
    Py_XDECREF(result);
    return (int32_t)number;
}

static Slot *learn_code(PyObject *code, PyObject *frame)
{
    int32_t token = number_from(call_ours(new_token, code, frame), IGNORED), start = -1;
    if (token < SPECIAL && start_of != NULL)
        start = number_from(call_ours(start_of, code, NULL), -1);
    table_put(&tokens, (uintptr_t)code, token, start);
    return table_find(&tokens, (uintptr_t)code);
}

static int32_t type_number(PyObject *type)
{
    Slot *known = table_find(&types, (uintptr_t)type);
    if (known != NULL)
        return known->value;
    int32_t number = number_from(call_ours(exception_number, type, NULL), UNKNOWN);
    if (number != UNKNOWN)
        table_put(&types, (uintptr_t)type, number, 0); /* probe.py keeps the type alive */
    return number;
}

/* --- Sink: where one thread's words go ------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    PyObject *stream; /* probe.py's Stream; NULL when closed */
    Py_buffer view;
    uint32_t *words;
    uint32_t at, limit, size;
    uint32_t serials;
    Table generators;                   /* frame of an unfinished one -> serial number, last instruction */
    uint32_t pending, pending_chunk;    /* the word of an exception type that is still to be seen */
    int32_t pending_type;               /* what it is when nobody sees it */
} Sink;

static void sink_flush(Sink *sink)
{
    Room room = room_make();
    PyObject *result = PyObject_CallMethod(sink->stream, "flush", "I", (unsigned int)sink->at);
    if (result == NULL)
        PyErr_WriteUnraisable(sink->stream);
    room_end(room);
    uint32_t at = (uint32_t)number_from(result, (int32_t)sink->at);
    sink->at = at < sink->size - 4 ? at : sink->size - 4;
}

static inline void sink_put(Sink *sink, uint32_t word)
{
    sink->words[sink->at++] = word;
    if (sink->at > sink->limit)
        sink_flush(sink);
}

static inline void sink_put_pair(Sink *sink, uint32_t word, uint32_t extra)
{
    sink->words[sink->at] = word;
    sink->words[sink->at + 1] = extra;
    sink->at += 2;
    if (sink->at > sink->limit)
        sink_flush(sink);
}

static void sink_begin(Sink *sink, int32_t token, void *frame, int32_t last)
{
    table_put(&sink->generators, (uintptr_t)frame, (int32_t)++sink->serials, last);
    sink_put(sink, (uint32_t)-token | ENTER);
}

static void sink_release(Sink *sink)
{
    if (sink->stream != NULL) {
        PyBuffer_Release(&sink->view);
        sink->words = NULL;
        Py_CLEAR(sink->stream);
    }
    table_clear(&sink->generators);
}

static int sink_bind(Sink *sink, PyObject *stream)
{
    PyObject *words = PyObject_GetAttrString(stream, "words");
    PyObject *limit = words == NULL ? NULL : PyObject_GetAttrString(stream, "limit");
    Py_buffer view;
    int bound = limit == NULL ? -1 : PyObject_GetBuffer(words, &view, PyBUF_WRITABLE | PyBUF_ND | PyBUF_FORMAT);
    if (bound == 0) {
        sink_release(sink);
        Py_INCREF(stream);
        sink->stream = stream;
        sink->view = view;
        sink->words = view.buf;
        sink->size = (uint32_t)(view.len / 4);
        sink->limit = (uint32_t)PyLong_AsLong(limit);
        sink->at = 1;
        sink->serials = sink->pending = 0;
    }
    Py_XDECREF(words);
    Py_XDECREF(limit);
    return bound;
}

static PyObject *sink_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    PyObject *stream;
    if (!PyArg_ParseTuple(args, "O", &stream))
        return NULL;
    Sink *sink = (Sink *)type->tp_alloc(type, 0);
    if (sink != NULL && sink_bind(sink, stream) < 0)
        Py_CLEAR(sink);
    return (PyObject *)sink;
}

static void sink_dealloc(Sink *sink)
{
    sink_release(sink);
    Py_TYPE(sink)->tp_free((PyObject *)sink);
}

static PyObject *sink_position(Sink *sink, PyObject *none)
{
    return PyLong_FromUnsignedLong(sink->at);
}

static PyObject *sink_write_pair(Sink *sink, PyObject *args)
{
    unsigned int word, extra;
    if (!PyArg_ParseTuple(args, "II", &word, &extra))
        return NULL;
    if (sink->stream != NULL)
        sink_put_pair(sink, word, extra);
    Py_RETURN_NONE;
}

static void forget_sinks(Sink *except);

static PyObject *sink_rebind(Sink *sink, PyObject *stream)
{
    forget_sinks(sink); /* after a fork there is one thread */
    if (sink_bind(sink, stream) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *sink_close(Sink *sink, PyObject *none)
{
    sink_release(sink);
    Py_RETURN_NONE;
}

static PyMethodDef sink_methods[] = {
    {"position", (PyCFunction)sink_position, METH_NOARGS, "The index of the next word."},
    {"write_pair", (PyCFunction)sink_write_pair, METH_VARARGS, "Add two words."},
    {"rebind", (PyCFunction)sink_rebind, METH_O, "Go on in another stream, after a fork."},
    {"close", (PyCFunction)sink_close, METH_NOARGS, "Give the buffer back; what comes later is dropped."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject sink_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "_xlocal_native.Sink",
    .tp_basicsize = sizeof(Sink),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Records one thread's calls into a stream.",
    .tp_new = sink_new,
    .tp_dealloc = (destructor)sink_dealloc,
    .tp_methods = sink_methods,
};

#if PY_VERSION_HEX < 0x030C0000

/* --- Python 3.6 to 3.11: a profile function for each thread ----------------------------------------------------------- */

static void forget_sinks(Sink *except) {}

#if PY_VERSION_HEX >= 0x030B0000
#define LAST_INSTRUCTION(frame) PyFrame_GetLasti(frame)
#define BORROWED_CODE(frame) borrowed_code(frame)

static inline PyObject *borrowed_code(PyFrameObject *frame)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    Py_DECREF(code); /* the frame holds it */
    return (PyObject *)code;
}
#else
#define LAST_INSTRUCTION(frame) ((frame)->f_lasti)
#define BORROWED_CODE(frame) ((PyObject *)(frame)->f_code)
#endif

/* The first event after an exception has left a call: its caller's, which sees the exception, unless C code caught it.
   The interpreter hides the exception from profile functions. */
static int on_next_event(PyObject *self, PyFrameObject *frame, int what, PyObject *arg)
{
    Sink *sink = (Sink *)self;
    Py_INCREF(self);
    PyEval_SetTrace(NULL, NULL);
    if (sink->pending && sink->stream != NULL && sink->words[0] == sink->pending_chunk) {
        int32_t number = sink->pending_type;
        if (what == PyTrace_EXCEPTION && PyTuple_Check(arg))
            number = type_number(PyTuple_GET_ITEM(arg, 0));
        sink->words[sink->pending] = (uint32_t)number;
    }
    sink->pending = 0;
    Py_DECREF(self);
    return 0;
}

static void put_raise(Sink *sink, uint32_t token, int32_t otherwise)
{
    uint32_t chunk = sink->words[0];
    sink_put_pair(sink, token | RAISE, UNKNOWN);
    if (PyThreadState_Get()->c_tracefunc != NULL || sink->words[0] != chunk)
        return;
    sink->pending = sink->at - 1;
    sink->pending_chunk = chunk;
    sink->pending_type = otherwise;
    PyEval_SetTrace(on_next_event, (PyObject *)sink);
}

static void on_call(Sink *sink, PyFrameObject *frame)
{
    PyObject *code = BORROWED_CODE(frame);
    Slot *slot = table_find(&tokens, (uintptr_t)code);
    if (slot == NULL && (slot = learn_code(code, (PyObject *)frame)) == NULL)
        return;
    int32_t token = slot->value;
    if (token > 0) {
        sink_put(sink, (uint32_t)token);
    } else if (token == SPECIAL) {
        Py_XDECREF(call_ours(special_enter, code, (PyObject *)frame));
    } else if (token < 0) {
        int32_t last = LAST_INSTRUCTION(frame);
        Slot *known = table_find(&sink->generators, (uintptr_t)frame);
        if (known == NULL || last <= slot->extra) { /* an address may be used again */
            sink_begin(sink, token, frame, last);
        } else {
            known->extra = last;
            sink_put_pair(sink, (uint32_t)-token | RESUME, sink->serials - (uint32_t)known->value + 1);
        }
    }
}

static void on_return(Sink *sink, PyFrameObject *frame, PyObject *arg)
{
    PyObject *code = BORROWED_CODE(frame);
    Slot *slot = table_find(&tokens, (uintptr_t)code);
    int32_t token = slot == NULL ? IGNORED : slot->value;
    if (token > 0) {
        if (arg != NULL)
            sink_put(sink, (uint32_t)token | LEAVE);
        else
            put_raise(sink, (uint32_t)token, UNKNOWN);
    } else if (token == SPECIAL) {
        Py_XDECREF(call_ours(special_leave, code, NULL));
    } else if (token < 0 && arg != NULL) {
        sink_put(sink, (uint32_t)-token | LEAVE);
    } else if (token < 0) {
        int32_t otherwise = UNKNOWN;
        Slot *known = table_find(&sink->generators, (uintptr_t)frame);
        if (known != NULL) {
            /* Left right where it was resumed, and its caller sees nothing: it was closed. */
            if (known->extra == LAST_INSTRUCTION(frame))
                otherwise = type_number(PyExc_GeneratorExit);
            table_remove(&sink->generators, known);
        }
        put_raise(sink, (uint32_t)-token, otherwise);
    }
}

static int on_profile(PyObject *self, PyFrameObject *frame, int what, PyObject *arg)
{
    Sink *sink = (Sink *)self;
    if (sink->stream == NULL)
        return 0;
    if (what == PyTrace_CALL)
        on_call(sink, frame);
    else if (what == PyTrace_RETURN)
        on_return(sink, frame, arg);
    return 0;
}

/* sys.getprofile() gives the sink to the program, which may put it back with sys.setprofile(): then it is called like
   a Python function, and takes its old place. */
static PyObject *sink_call(Sink *sink, PyObject *args, PyObject *named)
{
    PyObject *frame, *arg;
    const char *event;
    if (!PyArg_ParseTuple(args, "O!sO", &PyFrame_Type, &frame, &event, &arg))
        return NULL;
    PyEval_SetProfile(on_profile, (PyObject *)sink);
    if (strcmp(event, "call") == 0)
        on_profile((PyObject *)sink, (PyFrameObject *)frame, PyTrace_CALL, arg);
    else if (strcmp(event, "return") == 0)
        on_profile((PyObject *)sink, (PyFrameObject *)frame, PyTrace_RETURN, arg);
    Py_RETURN_NONE;
}

static PyObject *install(PyObject *module, PyObject *sink)
{
    if (Py_TYPE(sink) != &sink_type) {
        PyErr_SetString(PyExc_TypeError, "a Sink is wanted");
        return NULL;
    }
    PyEval_SetProfile(on_profile, sink);
    Py_RETURN_NONE;
}

static PyMethodDef module_callbacks[] = {
    {"install", install, METH_O, "Make a sink this thread's profile function."},
    {NULL, NULL, 0, NULL},
};

#else

/* --- Python 3.12 and later: callbacks of sys.monitoring ---------------------------------------------------------------- */

static PyObject *sinks; /* thread state's number (never used again) -> Sink */
static Sink *current;
static uint64_t current_thread;

#if PY_VERSION_HEX >= 0x030D0000
#define THIS_THREAD() PyThreadState_GetUnchecked()
#define THIS_FRAME() ((void *)THIS_THREAD()->current_frame)
#else
#define THIS_THREAD() _PyThreadState_UncheckedGet()
#define THIS_FRAME() ((void *)THIS_THREAD()->cframe->current_frame)
#endif

static void forget_sinks(Sink *except)
{
    current = NULL;
    PyObject *key, *value, *kept = PyDict_New();
    Py_ssize_t at = 0;
    if (kept == NULL || sinks == NULL)
        return PyErr_Clear();
    while (PyDict_Next(sinks, &at, &key, &value))
        if (value == (PyObject *)except && PyDict_SetItem(kept, key, value) < 0)
            PyErr_Clear();
    Py_SETREF(sinks, kept);
}

static Sink *switch_thread(PyThreadState *thread)
{
    PyObject *key = PyLong_FromUnsignedLongLong(thread->id);
    PyObject *sink = key == NULL ? NULL : PyDict_GetItemWithError(sinks, key);
    if (sink == NULL && key != NULL && !PyErr_Occurred()) {
        sink = call_ours(new_sink, NULL, NULL);
        if (sink != NULL && Py_TYPE(sink) == &sink_type && PyDict_SetItem(sinks, key, sink) < 0)
            PyErr_Clear();
        Py_XDECREF(sink); /* the dictionary holds it */
    }
    Py_XDECREF(key);
    if (sink == NULL || Py_TYPE(sink) != &sink_type) {
        PyErr_Clear();
        return NULL;
    }
    current = (Sink *)sink;
    current_thread = thread->id;
    return current;
}

static inline Sink *this_sink(void)
{
    PyThreadState *thread = THIS_THREAD();
    Sink *sink = current != NULL && thread->id == current_thread ? current : switch_thread(thread);
    return sink != NULL && sink->stream != NULL ? sink : NULL;
}

static inline Slot *slot_of(PyObject *code)
{
    Slot *slot = table_find(&tokens, (uintptr_t)code);
    return slot != NULL ? slot : learn_code(code, (PyObject *)PyEval_GetFrame());
}

#define CALLBACK(name) static PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t count)

CALLBACK(py_start)
{
    Slot *slot = slot_of(args[0]);
    if (slot == NULL)
        Py_RETURN_NONE;
    int32_t token = slot->value;
    Sink *sink;
    if (token > 0) {
        if ((sink = this_sink()) != NULL)
            sink_put(sink, (uint32_t)token);
    } else if (token == IGNORED) {
        return Py_NewRef(disable);
    } else if (token == SPECIAL) {
        if (this_sink() != NULL)
            Py_XDECREF(call_ours(special_enter, args[0], (PyObject *)PyEval_GetFrame()));
    } else if ((sink = this_sink()) != NULL) {
        sink_begin(sink, token, THIS_FRAME(), 0);
    }
    Py_RETURN_NONE;
}

static void resume(PyObject *code, int32_t token)
{
    Sink *sink = this_sink();
    if (sink == NULL)
        return;
    Slot *known = table_find(&sink->generators, (uintptr_t)THIS_FRAME());
    if (known == NULL)
        sink_begin(sink, token, THIS_FRAME(), 0);
    else
        sink_put_pair(sink, (uint32_t)-token | RESUME, sink->serials - (uint32_t)known->value + 1);
}

CALLBACK(py_resume)
{
    Slot *slot = slot_of(args[0]);
    if (slot == NULL || slot->value >= SPECIAL)
        return Py_NewRef(disable);
    resume(args[0], slot->value);
    Py_RETURN_NONE;
}

CALLBACK(py_throw) /* cannot be disabled */
{
    Slot *slot = slot_of(args[0]);
    if (slot != NULL && slot->value < SPECIAL)
        resume(args[0], slot->value);
    Py_RETURN_NONE;
}

CALLBACK(py_return)
{
    Slot *slot = table_find(&tokens, (uintptr_t)args[0]), *known;
    int32_t token = slot == NULL ? IGNORED : slot->value;
    Sink *sink;
    if (token == IGNORED)
        return Py_NewRef(disable);
    if (token == SPECIAL) {
        Py_XDECREF(call_ours(special_leave, args[0], NULL));
    } else if ((sink = this_sink()) == NULL) {
        Py_RETURN_NONE;
    } else if (token > 0) {
        sink_put(sink, (uint32_t)token | LEAVE);
    } else if ((known = table_find(&sink->generators, (uintptr_t)THIS_FRAME())) != NULL) {
        table_remove(&sink->generators, known);
        sink_put(sink, (uint32_t)-token | LEAVE);
    }
    Py_RETURN_NONE;
}

CALLBACK(py_yield)
{
    Slot *slot = table_find(&tokens, (uintptr_t)args[0]);
    Sink *sink;
    if (slot == NULL || slot->value >= SPECIAL)
        return Py_NewRef(disable);
    if ((sink = this_sink()) != NULL && table_find(&sink->generators, (uintptr_t)THIS_FRAME()) != NULL)
        sink_put(sink, (uint32_t)-slot->value | LEAVE);
    Py_RETURN_NONE;
}

CALLBACK(py_unwind) /* cannot be disabled */
{
    Slot *slot = table_find(&tokens, (uintptr_t)args[0]), *known;
    int32_t token = slot == NULL ? IGNORED : slot->value;
    if (token == IGNORED || token == SPECIAL)
        Py_RETURN_NONE;
    int32_t number = type_number((PyObject *)Py_TYPE(args[2]));
    Sink *sink = this_sink();
    if (sink == NULL)
        Py_RETURN_NONE;
    if (token < 0) {
        if ((known = table_find(&sink->generators, (uintptr_t)THIS_FRAME())) == NULL)
            Py_RETURN_NONE;
        table_remove(&sink->generators, known);
        token = -token;
    }
    sink_put_pair(sink, (uint32_t)token | RAISE, (uint32_t)number);
    Py_RETURN_NONE;
}

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef module_callbacks[] = {
    METHOD(py_start), METHOD(py_resume), METHOD(py_throw), METHOD(py_return),
    METHOD(py_yield), METHOD(py_unwind), {NULL, NULL, 0, NULL},
};

#endif

/* --- the module ---------------------------------------------------------------------------------------------------------- */

static PyObject *setup(PyObject *module, PyObject *args)
{
    PyObject **kept[] = {&new_token, &special_enter, &special_leave, &exception_number, &start_of, &new_sink, &disable};
    PyObject *given[7];
    if (!PyArg_ParseTuple(args, "OOOOOOO", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5], &given[6]))
        return NULL;
    for (int at = 0; at < 7; at++) {
        Py_INCREF(given[at]);
        Py_XDECREF(*kept[at]);
        *kept[at] = given[at];
    }
    if (start_of == Py_None)
        Py_CLEAR(start_of);
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"setup", setup, METH_VARARGS,
     "setup(new_token, special_enter, special_leave, exception_number, start_of, new_sink, disable)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_xlocal_native", "The hooks of xlocal's probe in C.", -1, module_methods,
};

PyMODINIT_FUNC PyInit__xlocal_native(void)
{
#if PY_VERSION_HEX < 0x030C0000
    sink_type.tp_call = (ternaryfunc)sink_call;
#else
    if ((sinks = PyDict_New()) == NULL)
        return NULL;
#endif
    PyObject *module = PyType_Ready(&sink_type) < 0 ? NULL : PyModule_Create(&definition);
    Py_INCREF(&sink_type);
    if (module == NULL || PyModule_AddFunctions(module, module_callbacks) < 0 ||
        PyModule_AddObject(module, "Sink", (PyObject *)&sink_type) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
