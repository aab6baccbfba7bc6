// Copies between two boxes of equal shape and any strides: packing, unpacking, and strided to strided in one go.
//
// They work by the size of a unit, not by dtype: the host merges dimensions that are contiguous on both sides and
// takes the largest unit of 1, 2, 4, 8 or 16 bytes that all strides and both addresses are multiples of.

constexpr int kMaxDims = 16;

// A box of `count` units. The last dimension is the innermost one; strides are in bytes and may be negative.
struct Box {
  int ndim;
  int unused;
  long long count;
  long long shape[kMaxDims];
  long long source_strides[kMaxDims];
  long long target_strides[kMaxDims];
};

// `Index` holds any number of a unit, plus the number of threads; `Stride` holds any stride.
template <class Unit, class Index, class Stride>
__device__ __forceinline__ void copy_box(char* __restrict__ target, const char* __restrict__ source, const Box& box) {
  const Index count = static_cast<Index>(box.count);
  const Index step = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    Index rest = i;
    long long from = 0, to = 0;
    for (int d = box.ndim - 1; d > 0; --d) {
      const Index size = static_cast<Index>(box.shape[d]);
      const Index outer = rest / size;
      const Stride place = static_cast<Stride>(rest - outer * size);
      from += static_cast<long long>(place) * static_cast<Stride>(box.source_strides[d]);
      to += static_cast<long long>(place) * static_cast<Stride>(box.target_strides[d]);
      rest = outer;
    }
    const Stride place = static_cast<Stride>(rest);
    from += static_cast<long long>(place) * static_cast<Stride>(box.source_strides[0]);
    to += static_cast<long long>(place) * static_cast<Stride>(box.target_strides[0]);
    *reinterpret_cast<Unit*>(target + to) = *reinterpret_cast<const Unit*>(source + from);
  }
}

// copy_<bytes a unit>_<bits of an index>. With 32 bits, `count` and the absolute strides are below 2^31.

extern "C" __global__ void __launch_bounds__(256) copy_1_32(char* target, const char* source, const Box box) {
  copy_box<unsigned char, unsigned, int>(target, source, box);
}

extern "C" __global__ void __launch_bounds__(256) copy_2_32(char* target, const char* source, const Box box) {
  copy_box<unsigned short, unsigned, int>(target, source, box);
}

extern "C" __global__ void __launch_bounds__(256) copy_4_32(char* target, const char* source, const Box box) {
  copy_box<unsigned, unsigned, int>(target, source, box);
}

extern "C" __global__ void __launch_bounds__(256) copy_8_32(char* target, const char* source, const Box box) {
  copy_box<uint2, unsigned, int>(target, source, box);
}

extern "C" __global__ void __launch_bounds__(256) copy_16_32(char* target, const char* source, const Box box) {
  copy_box<uint4, unsigned, int>(target, source, box);
}

extern "C" __global__ void __launch_bounds__(256) copy_1_64(char* target, const char* source, const Box box) {
  copy_box<unsigned char, unsigned long long, long long>(target, source, box);
}

extern "C" __global__ void __launch_bounds__(256) copy_2_64(char* target, const char* source, const Box box) {
  copy_box<unsigned short, unsigned long long, long long>(target, source, box);
}

extern "C" __global__ void __launch_bounds__(256) copy_4_64(char* target, const char* source, const Box box) {
  copy_box<unsigned, unsigned long long, long long>(target, source, box);
}

extern "C" __global__ void __launch_bounds__(256) copy_8_64(char* target, const char* source, const Box box) {
  copy_box<uint2, unsigned long long, long long>(target, source, box);
}

extern "C" __global__ void __launch_bounds__(256) copy_16_64(char* target, const char* source, const Box box) {
  copy_box<uint4, unsigned long long, long long>(target, source, box);
}
