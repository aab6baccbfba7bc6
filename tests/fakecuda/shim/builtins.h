// What CUDA C++ has without an include: indices, barriers, shuffles, atomics, intrinsics.
#pragma once

#define threadIdx (::shim::thread_idx)
#define blockIdx (::shim::block_idx)
#define blockDim (::shim::block_dim)
#define gridDim (::shim::grid_dim)
#define warpSize 32

template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }

// --- barriers and fences -------------------------------------------------------------------------------------------

inline void __syncthreads() { shim::block_barrier(); }
inline void __syncwarp(unsigned mask = ~0u) { shim::warp_barrier(mask); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// --- shuffles and votes --------------------------------------------------------------------------------------------

namespace shim {

template <class To, class From>
To bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  memcpy(&result, &value, sizeof result);
  return result;
}

// The value of the lane that `pick` names, where it is one of the thread's section of `width` lanes; else its own.
template <class T, class Pick>
T shuffle(unsigned mask, T value, int width, Pick pick) {
  static_assert(sizeof(T) <= 8);
  uint64_t word = 0;
  memcpy(&word, &value, sizeof value);
  int lane, lanes;
  const uint64_t* words = exchange(mask, word, &lane, &lanes);
  int first = lane / width * width, from = pick(lane, first);
  if (from >= first && from < first + width && from < lanes) memcpy(&value, &words[from], sizeof value);
  return value;
}

inline unsigned vote(unsigned mask, bool predicate) {
  int lane, lanes;
  const uint64_t* words = exchange(mask, predicate, &lane, &lanes);
  unsigned result = 0;
  for (int i = 0; i < lanes; ++i) {
    if (mask >> i & 1 && words[i]) result |= 1u << i;
  }
  return result;
}

}  // namespace shim

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return shim::shuffle(mask, value, width, [=](int, int first) { return first + source % width; });
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return shim::shuffle(mask, value, width, [=](int lane, int) { return lane - int(delta); });
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return shim::shuffle(mask, value, width, [=](int lane, int) { return lane + int(delta); });
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  return shim::shuffle(mask, value, width, [=](int lane, int) { return lane ^ lanes; });
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return shim::vote(mask, predicate); }
inline int __any_sync(unsigned mask, int predicate) { return shim::vote(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return shim::vote(mask, !predicate) == 0; }

// --- time ----------------------------------------------------------------------------------------------------------

inline void __nanosleep(unsigned ns) { shim::sleep_ns(ns + 100); }
inline long long clock64() {
  shim::sleep_ns(500);
  return shim::clock_ns() * 2;
}

// --- reinterpretation, bits ----------------------------------------------------------------------------------------

inline float __int_as_float(int x) { return shim::bits<float>(x); }
inline int __float_as_int(float x) { return shim::bits<int>(x); }
inline float __uint_as_float(unsigned x) { return shim::bits<float>(x); }
inline unsigned __float_as_uint(float x) { return shim::bits<unsigned>(x); }
inline double __longlong_as_double(long long x) { return shim::bits<double>(x); }
inline long long __double_as_longlong(double x) { return shim::bits<long long>(x); }
inline double __hiloint2double(int high, int low) {
  return shim::bits<double>(uint64_t(unsigned(high)) << 32 | unsigned(low));
}
inline int __double2hiint(double x) { return int(shim::bits<uint64_t>(x) >> 32); }
inline int __double2loint(double x) { return int(shim::bits<uint64_t>(x)); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
  return result;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
template <class T>
T __ldg(const T* p) { return *p; }

// --- arithmetic ----------------------------------------------------------------------------------------------------

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }

// --- atomics: of any grid and of the host, since grids may run at once ---------------------------------------------

namespace shim {

template <class T>
using Same = std::common_type_t<T>;  // not deduced: T comes from the pointer alone

template <size_t size>
struct WordOf {};
template <> struct WordOf<2> { using type = uint16_t; };
template <> struct WordOf<4> { using type = uint32_t; };
template <> struct WordOf<8> { using type = uint64_t; };

// Puts in the place of *p what `next` makes of it; returns what was there.
template <class T, class Next>
T update(T* p, Next next) {
  using Word = typename WordOf<sizeof(T)>::type;
  auto word = reinterpret_cast<Word*>(p);
  Word old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(word, &old, bits<Word>(T(next(bits<T>(old)))), false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST)) {
  }
  return bits<T>(old);
}

}  // namespace shim

template <class T>
T atomicExch(T* p, shim::Same<T> value) { return shim::update(p, [=](T) { return value; }); }
template <class T>
T atomicAdd(T* p, shim::Same<T> value) { return shim::update(p, [=](T old) { return old + value; }); }
template <class T>
T atomicSub(T* p, shim::Same<T> value) { return shim::update(p, [=](T old) { return old - value; }); }
template <class T>
T atomicMax(T* p, shim::Same<T> value) { return shim::update(p, [=](T old) { return old > value ? old : value; }); }
template <class T>
T atomicMin(T* p, shim::Same<T> value) { return shim::update(p, [=](T old) { return old < value ? old : value; }); }
template <class T>
T atomicAnd(T* p, shim::Same<T> value) { return shim::update(p, [=](T old) { return old & value; }); }
template <class T>
T atomicOr(T* p, shim::Same<T> value) { return shim::update(p, [=](T old) { return old | value; }); }
template <class T>
T atomicXor(T* p, shim::Same<T> value) { return shim::update(p, [=](T old) { return old ^ value; }); }
template <class T>
T atomicCAS(T* p, shim::Same<T> expected, shim::Same<T> value) {
  return shim::update(p, [=](T old) { return old == expected ? value : old; });
}
