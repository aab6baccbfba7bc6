// Compiles CUDA C++ kernels with g++. It comes before every kernel source.
#pragma once

#include <assert.h>
#include <math.h>  // the C++ library's: it brings std::abs, std::sin and the like, of all types, to where CUDA has them
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include <type_traits>
#include <utility>

#include "runtime.h"

#define CUPLACE_HOST 1  // kernel sources can leave out what the CPU cannot do

namespace shim {

// --- parameters, deduced from the kernel's type --------------------------------------------------------------------

template <class T>
struct Describe {
  static constexpr bool plain = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_empty_v<T> || sizeof(T) < 8;
  static constexpr Param param = {sizeof(T), plain ? '.' : 's', 0, 0};
};
template <class T>
struct Describe<T*> {
  static constexpr char kind = std::is_volatile_v<T> ? 'v' : std::is_const_v<T> ? 'r' : 'b';
  static constexpr Param param = {sizeof(T*), kind, 0, 0};
};

template <class... Args, size_t... I>
void call(void (*kernel)(Args...), void** args, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<Args>*>(args[I])...);
}

template <class... Args>
void call(void (*kernel)(Args...), void** args) {
  call(kernel, args, std::index_sequence_for<Args...>());
}

template <class... Args>
int describe(void (*)(Args...), Param* params) {
  int count = 0;
  ((params[count++] = Describe<Args>::param), ...);
  return count;
}

// `extern __shared__ T name[];` outside of functions.
template <class T>
struct DynamicShared {
  operator T*() const { return reinterpret_cast<T*>(dynamic_shared_memory); }
};

}  // namespace shim

// Makes a kernel callable from outside: it can be run, and its parameters told.
#define SHIM_VISIBLE extern "C" __attribute__((visibility("default")))
#define SHIM_EXPORT(label, kernel, fibers)                                                                       \
  static void shim_thread_##label(void** args) { shim::call(kernel, args); }                                     \
  SHIM_VISIBLE void shim_run_##label(const shim::Launch* launch, shim::Outcome* outcome) {                       \
    shim::run_grid(shim_thread_##label, launch, fibers, outcome);                                                \
  }                                                                                                              \
  SHIM_VISIBLE int shim_describe_##label(shim::Param* params) { return shim::describe(kernel, params); }

// Kernels are linked without the start files that hold this name, which `thread_local` objects with a destructor need.
extern "C" {
__attribute__((visibility("hidden"), weak)) void* __dso_handle = nullptr;
}

#include "builtins.h"
