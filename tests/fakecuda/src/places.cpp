#include <Python.h>
#include <frameobject.h>

#include "places.h"

#include <atomic>
#include <map>
#include <unordered_map>

namespace fakecuda {

namespace {

enum class Kind { hidden, library, user };

struct CodeInfo {
  Kind kind;
  std::string file, function;
};

// All of this but `wanted` is used with Python's lock held.
struct Known {
  std::vector<std::string> hidden, library;
  std::unordered_map<PyCodeObject*, CodeInfo> codes;  // each holds a reference, so that its address stays its own
  std::map<std::pair<PyCodeObject*, int>, const Line*> lines;
  std::atomic<bool> wanted{true};
};

Known& known() {
  static auto* instance = new Known;
  return *instance;
}

std::string utf8(PyObject* text) {
  const char* bytes = PyUnicode_AsUTF8(text);
  return bytes ? bytes : "?";
}

bool under(const std::string& file, const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    if (file.compare(0, folder.size(), folder) == 0) return true;
  }
  return false;
}

const CodeInfo& info_of(PyCodeObject* code) {
  auto found = known().codes.find(code);
  if (found != known().codes.end()) return found->second;
  Py_INCREF(code);
  CodeInfo info{Kind::user, utf8(code->co_filename), utf8(code->co_name)};
  if (under(info.file, known().library)) info.kind = Kind::library;
  else if (info.file.compare(0, 1, "<") == 0 || under(info.file, known().hidden)) info.kind = Kind::hidden;
  return known().codes.emplace(code, std::move(info)).first->second;
}

const Line* line_of(PyCodeObject* code, const CodeInfo& info, PyFrameObject* frame) {
  const Line*& line = known().lines[{code, PyFrame_GetLasti(frame)}];
  if (!line) line = new Line{info.file, PyFrame_GetLineNumber(frame), info.function};
  return line;
}

Place walk(PyFrameObject* frame) {
  Place place;
  Py_XINCREF(frame);
  while (frame && !place.user) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const CodeInfo& info = info_of(code);
    if (info.kind == Kind::library && !place.library) place.library = line_of(code, info, frame);
    if (info.kind == Kind::user) place.user = line_of(code, info, frame);
    Py_DECREF(code);
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
  return place;
}

bool python_ends() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

// Holds Python's lock while it lives.
class PythonLock {
 public:
  PythonLock() : state_(PyGILState_Ensure()) {}
  ~PythonLock() { PyGILState_Release(state_); }
  PythonLock(const PythonLock&) = delete;
  PythonLock& operator=(const PythonLock&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace

Place here() {
  if (!known().wanted || python_ends()) return {};
  PythonLock lock;
  return walk(PyEval_GetFrame());
}

void set_folders(std::vector<std::string> hidden, std::vector<std::string> library) {
  PythonLock lock;
  known().hidden = std::move(hidden);
  known().library = std::move(library);
  for (auto& [code, info] : known().codes) Py_DECREF(code);
  known().codes.clear();
  known().lines.clear();
}

void take_places(bool wanted) { known().wanted = wanted; }

}  // namespace fakecuda
