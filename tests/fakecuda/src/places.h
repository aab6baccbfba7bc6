// Places: which lines of Python a call of the API came from.
#pragma once

#include <string>
#include <vector>

namespace fakecuda {

struct Line {
  std::string file;
  int number;
  std::string function;

  std::string text() const { return file + ":" + std::to_string(number) + " in " + function; }
};

// `user`: the innermost line outside of the fake, of CuPy and of the library under test.
// `library`: the innermost line outside of the fake and of CuPy, where that is another one.
struct Place {
  const Line* user = nullptr;
  const Line* library = nullptr;
};

// Of the calling thread. Takes Python's lock for a moment, so it is never called with ours held.
Place here();

// Files under these folders are left out (`hidden`), or are the library under test.
void set_folders(std::vector<std::string> hidden, std::vector<std::string> library);

// False: places are not taken, which saves about 2 us a call.
void take_places(bool wanted);

}  // namespace fakecuda
