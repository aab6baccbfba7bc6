// Stands in for the compiler package's header of this name: the macros that the CUDA runtime headers expect, for g++
// alone. With it the small runtime package is enough (no 40 MB compiler package).
#pragma once

// Calling convention and linkage.
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __cdecl

// Marks that only CUDA's own compiler reads.
#define __builtin_align__(n) __align__(n)
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __specialization_static static

// Qualifiers of functions and variables. A block runs on one CPU thread, and several grids may run at once on
// different threads: hence the kind of shared memory.
#define __constant__ static
#define __device__
#define __global__
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)
#define __managed__
#define __shared__ static thread_local

// GNU attributes.
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline __attribute__((always_inline))
#define __no_return__ __attribute__((noreturn))
