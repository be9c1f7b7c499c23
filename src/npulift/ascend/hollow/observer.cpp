// Which operator, module and source line is at work: a callback of torch's own RecordFunction, which sees every operator, every autograd node
// and the optimizers' steps, and a short walk over Python's frames for each outermost operator. Loaded into the global scope before torch_npu,
// it also stands in front of at::native::cpu_fallback, so that each fallback is counted where torch_npu makes it.
#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/record_function.h>
#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "trace.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// --- Python, by name: no headers of Python are needed ----------------------------------------------------------------------------
typedef struct _object PyObject;
namespace py {
int (*ensure)();
void (*release)(int);
void *(*this_thread)();
int (*initialized)();
PyObject *(*frame)();
PyObject *(*back)(PyObject *);
PyObject *(*code)(PyObject *);
int (*line)(PyObject *);
int (*instruction)(PyObject *);  // from 3.11; null before
void (*incref)(PyObject *), (*decref)(PyObject *);
PyObject *(*attribute)(PyObject *, const char *);
const char *(*text)(PyObject *);
PyObject *(*function)(void *, PyObject *, PyObject *);
PyObject *none, *yes, *no;

template <class F> bool find(F &f, const char *name) { return (f = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name))) != nullptr; }
bool load() {
  int (*is_initialized)();
  find(is_initialized, "Py_IsInitialized");
  initialized = is_initialized;
  find(instruction, "PyFrame_GetLasti");
  return find(ensure, "PyGILState_Ensure") && find(release, "PyGILState_Release") && find(this_thread, "PyGILState_GetThisThreadState") &&
         find(frame, "PyEval_GetFrame") && find(back, "PyFrame_GetBack") && find(code, "PyFrame_GetCode") && find(line, "PyFrame_GetLineNumber") &&
         find(incref, "Py_IncRef") && find(decref, "Py_DecRef") && find(attribute, "PyObject_GetAttrString") && find(text, "PyUnicode_AsUTF8") &&
         find(function, "PyCFunction_NewEx") && find(none, "_Py_NoneStruct") && find(yes, "_Py_TrueStruct") && find(no, "_Py_FalseStruct") &&
         initialized != nullptr;
}
}  // namespace py

namespace {

enum class Owner : uint8_t { user, library, torch, ours, module_call };
struct Code { Owner owner; std::string file, function; };

std::vector<std::string> torch_paths, library_paths, our_paths;
std::unordered_map<PyObject *, Code> codes;                 // holding the GIL
std::unordered_map<uint64_t, uint32_t> lines;               // (code, instruction) -> 'F' line; holding the GIL
std::unordered_map<uint64_t, uint32_t> locations;           // (user, call) -> 'L' line; holding the GIL
std::unordered_map<PyObject *, uint32_t> modules;           // holding the GIL
PyObject *module_call_code = nullptr;

bool starts(const std::string &s, const std::vector<std::string> &prefixes) {
  for (const auto &p : prefixes)
    if (s.compare(0, p.size(), p) == 0) return true;
  return false;
}

const Code &code_of(PyObject *code) {
  auto found = codes.find(code);
  if (found != codes.end()) return found->second;
  Code made;
  auto read = [&](const char *name) {
    PyObject *value = py::attribute(code, name);
    const char *text = value ? py::text(value) : nullptr;
    std::string s = text ? text : "?";
    if (value) py::decref(value);
    return s;
  };
  made.file = read("co_filename");
  made.function = read("co_name");
  if (code == module_call_code) made.owner = Owner::module_call;
  else if (starts(made.file, our_paths)) made.owner = Owner::ours;
  else if (starts(made.file, torch_paths) || made.file.compare(0, 1, "<") == 0) made.owner = Owner::torch;
  else if (starts(made.file, library_paths)) made.owner = Owner::library;
  else made.owner = Owner::user;
  py::incref(code);  // it stays, so that its address means this code for good
  return codes.emplace(code, std::move(made)).first->second;
}

uint32_t line_of(PyObject *frame, PyObject *code, const Code &known) {
  uint64_t where = py::instruction ? static_cast<uint64_t>(py::instruction(frame)) : static_cast<uint64_t>(py::line(frame));
  uint64_t key = reinterpret_cast<uint64_t>(code) * 0x9e3779b97f4a7c15ull ^ where;
  auto found = lines.find(key);
  if (found != lines.end()) return found->second;
  std::string text = known.file + "\t" + std::to_string(py::line(frame)) + "\t" + known.function;
  return lines[key] = hollow_named('F', text.c_str());
}

struct Frames { uint32_t user = 0, call = 0, other = 0; };

// A call of a module. `outside` is where it was called from, found out when it is first asked for.
struct Call { PyObject *module; uint32_t number; bool known = false; Frames outside; };

// An autograd node at work. Its name is asked for when an operator in it is recorded, once.
struct Node { uint32_t op; uint32_t name; const at::RecordFunction *range; };

// What a thread is doing, behind one pointer, because every operator asks for it.
struct Thread {
  uint32_t depth = 0;         // of operators
  bool seeding = false;       // the frames hold torch.autograd's _make_grads: the first gradient, which belongs to the backward pass
  uint32_t *current = hollow_current_operator();
  std::vector<Call> calls;
  std::vector<Node> nodes;
  std::unordered_map<const void *, std::pair<std::string, uint32_t>> names;   // the schema's own text, one address an overload -> its line
};
__thread Thread *this_thread_state __attribute__((tls_model("initial-exec")));
inline Thread &here() {
  if (!this_thread_state) this_thread_state = new Thread;   // threads of torch live as long as the process
  return *this_thread_state;
}

// From `frame` (owned) outwards, up to the module call that stands at `depth` in `calls`, whose own outside is then taken over.
Frames walk(PyObject *frame, size_t depth, Thread &thread) {
  std::vector<Call> &calls = thread.calls;
  Frames found;
  int steps = 0;
  while (frame && ++steps < 400) {
    PyObject *code = py::code(frame);
    const Code &known = code_of(code);
    if (known.owner == Owner::module_call && depth > 0) {
      Call &call = calls[depth - 1];
      if (!call.known) {
        PyObject *outer = py::back(frame);
        call.outside = walk(outer, depth - 1, thread);
        calls[depth - 1].known = true;
      }
      py::decref(code);
      py::decref(frame);
      const Frames &outside = calls[depth - 1].outside;
      if (!found.user) found.user = outside.user;
      if (!found.call) found.call = outside.call;
      if (!found.other) found.other = outside.other;
      return found;
    }
    if (known.owner == Owner::user || known.owner == Owner::library) {
      if (!found.call) found.call = line_of(frame, code, known);
      if (known.owner == Owner::user) {
        found.user = line_of(frame, code, known);
        py::decref(code);
        py::decref(frame);
        return found;
      }
    } else if (!found.other && known.owner == Owner::torch) {
      found.other = line_of(frame, code, known);
      thread.seeding = known.function == "_make_grads";
    }
    py::decref(code);
    PyObject *outer = py::back(frame);
    py::decref(frame);
    frame = outer;
  }
  if (frame) py::decref(frame);
  return found;
}

// Number of the 'L' line of this thread's position in Python, 0 when it has none; and of the module it is in.
uint32_t location(uint32_t &module, Thread &thread) {
  module = thread.calls.empty() ? 0 : thread.calls.back().number;
  if (!py::this_thread()) return 0;
  int state = py::ensure();
  uint32_t number = 0;
  PyObject *frame = py::frame();
  if (frame) {
    py::incref(frame);
    Frames found = walk(frame, thread.calls.size(), thread);
    uint32_t call = found.call ? found.call : found.other, user = found.user ? found.user : call;
    uint64_t key = static_cast<uint64_t>(user) << 32 | call;
    auto known = locations.find(key);
    if (known != locations.end()) number = known->second;
    else if (user) {
      std::string text = std::to_string(user) + "\t" + std::to_string(call);
      number = locations[key] = hollow_named('L', text.c_str());
    }
  }
  py::release(state);
  return number;
}

// --- operators -------------------------------------------------------------------------------------------------------------------

struct Forward { std::atomic<int64_t> sequence{-1}; std::atomic<uint32_t> op{0}; };
Forward forwards[1 << 18];  // by sequence number

std::atomic<uint32_t> steps{0}, optimizers{0};

uint32_t name_number(const at::RecordFunction &f, Thread &thread) {
  const char *name = f.name();
  auto found = thread.names.find(name);
  if (found != thread.names.end() && found->second.first == name) return found->second.second;
  auto full = f.operator_name();
  std::string text = full.has_value() ? full->name + (full->overload_name.empty() ? "" : "." + full->overload_name) : name;
  uint32_t number = hollow_named('N', text.c_str());
  thread.names[name] = {name, number};
  return number;
}

// The engine opens one range of scope FUNCTION a node, around the node's own of scope BACKWARD_FUNCTION; what it adds up lies in the first alone.
const char engine[] = "autograd::engine::evaluate_function: ";

void enter_node(const at::RecordFunction &f, Thread &thread) {
  uint32_t op = 0;
  if (f.seqNr() >= 0) {
    Forward &forward = forwards[f.seqNr() & ((1 << 18) - 1)];
    if (forward.sequence.load(std::memory_order_relaxed) == f.seqNr()) op = forward.op.load(std::memory_order_relaxed);
  }
  if (!thread.nodes.empty() && !thread.nodes.back().op) thread.nodes.back().op = op;   // the engine's range around it has no sequence number
  thread.nodes.push_back({op, 0, &f});
}

void enter_operator(const at::RecordFunction &f, Thread &thread) {
  hollow_operator op{};
  op.start_ns = hollow_now();
  op.sequence = f.seqNr();
  op.name = name_number(f, thread);
  op.thread = hollow_thread();
  thread.seeding = false;
  op.location = location(op.module, thread);
  op.step = steps.load(std::memory_order_relaxed);
  op.phase = optimizers.load(std::memory_order_relaxed) ? 2 : thread.seeding ? 1 : 0;
  if (!thread.nodes.empty()) {
    Node &node = thread.nodes.back();
    if (!node.name) {
      const char *name = node.range->name();
      node.name = hollow_named('N', strncmp(name, engine, sizeof engine - 1) ? name : name + sizeof engine - 1);
    }
    op.phase = 1;
    op.parent = node.op;
    op.node = node.name;
    if (hollow_operator *forward = hollow_operator_row(op.parent)) {
      if (!op.location) op.location = forward->location;
      if (!op.module) op.module = forward->module;
    }
  }
  *thread.current = hollow_add_operator(&op);
}

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction &f) {
  Thread &thread = here();
  switch (f.scope()) {
    case at::RecordScope::BACKWARD_FUNCTION: enter_node(f, thread); break;
    case at::RecordScope::USER_SCOPE:
      if (!strncmp(f.name(), "Optimizer.step#", 15)) optimizers++;
      break;
    default:
      if (thread.depth == 0) {
        const char *name = f.name();
        if (name[0] == 'a' && name[1] == 'u' && !strncmp(name, engine, sizeof engine - 1)) {
          enter_node(f, thread);
          break;
        }
        if (hollow_tracing()) enter_operator(f, thread);
      }
      thread.depth++;
      if (f.seqNr() >= 0 && thread.nodes.empty()) {
        Forward &forward = forwards[f.seqNr() & ((1 << 18) - 1)];
        forward.op.store(*thread.current, std::memory_order_relaxed);
        forward.sequence.store(f.seqNr(), std::memory_order_relaxed);
      }
  }
  return nullptr;
}

void leave(const at::RecordFunction &f, at::ObserverContext *) {
  Thread &thread = here();
  if (!thread.nodes.empty() && thread.nodes.back().range == &f) {
    thread.nodes.pop_back();
  } else if (f.scope() == at::RecordScope::USER_SCOPE) {
    if (!strncmp(f.name(), "Optimizer.step#", 15)) {
      optimizers--;
      steps++;
    }
  } else if (thread.depth && --thread.depth == 0) {
    if (hollow_operator *op = hollow_operator_row(*thread.current)) op->end_ns = hollow_now();
    *thread.current = 0;
  }
}

// --- module calls: two functions that Python calls around each --------------------------------------------------------------------

PyObject *give(PyObject *value) {
  py::incref(value);
  return value;
}
PyObject *push(PyObject *, PyObject *module) {      // True when this is an outermost module that has no name yet
  std::vector<Call> &calls = here().calls;
  auto found = modules.find(module);
  bool unknown = calls.empty() && found == modules.end();
  calls.push_back({module, found == modules.end() ? 0 : found->second});
  return give(unknown ? py::yes : py::no);
}
PyObject *pop(PyObject *, PyObject *) {
  std::vector<Call> &calls = here().calls;
  if (!calls.empty()) calls.pop_back();
  return give(py::none);
}
struct Method { const char *name; PyObject *(*call)(PyObject *, PyObject *); int flags; const char *doc; };
Method methods[] = {{"push", push, 8, nullptr}, {"pop", pop, 4, nullptr}};   // METH_O, METH_NOARGS

}  // namespace

EXPORT int observer_load() { return py::load() ? 0 : 1; }
EXPORT PyObject *observer_push() { return py::function(&methods[0], nullptr, nullptr); }
EXPORT PyObject *observer_pop() { return py::function(&methods[1], nullptr, nullptr); }
EXPORT void observer_name(PyObject *module, const char *path) {
  uint32_t number = hollow_named('M', path);
  modules[module] = number;
  for (Call &call : here().calls)
    if (call.module == module) call.number = number;
}
EXPORT void observer_forget(PyObject *module) { modules.erase(module); }
EXPORT uint32_t observer_steps() { return steps.load(); }

// kind: 't' torch's folders, 'l' folders of libraries, 'o' ours.
EXPORT void observer_path(char kind, const char *path) {
  (kind == 't' ? torch_paths : kind == 'l' ? library_paths : our_paths).emplace_back(path);
}

EXPORT int observer_start(PyObject *call_code) {
  module_call_code = call_code;
  at::addGlobalCallback(at::RecordFunctionCallback(enter, leave)
                            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
  return 0;
}

// Where this thread is in Python, written down as an 'L' line; for Python code of ours that records something itself.
EXPORT uint32_t observer_location() {
  uint32_t module;
  return location(module, here());
}

namespace at::native {
__attribute__((visibility("default"))) void cpu_fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack, bool error_on_views, c10::DispatchKey key) {
  using Function = void (*)(const c10::OperatorHandle &, torch::jit::Stack *, bool, c10::DispatchKey);
  static Function real = nullptr;
  if (!real) {
    void *library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    real = reinterpret_cast<Function>(
        dlsym(library ? library : RTLD_NEXT, "_ZN2at6native12cpu_fallbackERKN3c1014OperatorHandleEPSt6vectorINS1_6IValueESaIS6_EEbNS1_11DispatchKeyE"));
  }
  const auto &name = op.operator_name();
  std::string text = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
  uint64_t start = hollow_now();
  struct Written {
    uint64_t start;
    std::string &text;
    ~Written() { hollow_record(HOLLOW_FALLBACK, hollow_named('S', text.c_str()), 0, 0, 0, hollow_now() - start); }
  } written{start, text};
  real(op, stack, error_on_views, key);
}
}  // namespace at::native
