// Runs kernels on the CPU for tests: reads requests from standard input, answers with the target's bytes.
// Source and target are allocated by their exact sizes, so that the address sanitizer sees every step outside.
#include "shim.h"

#include "../../kernels/copy.cu"
#include "../../kernels/probe.cu"
#include "../../kernels/wait.cu"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>

struct Request {
  char kernel[32];
  uint32_t blocks, threads, seed, unused;
  uint64_t source_bytes, source_offset, target_bytes, target_offset;
  uint64_t numbers[2];
  Box box;
};

using Copy = void (*)(char*, const char*, Box);

static const std::map<std::string, Copy> kCopies = {
    {"copy_1_32", copy_1_32}, {"copy_2_32", copy_2_32}, {"copy_4_32", copy_4_32},  {"copy_8_32", copy_8_32},
    {"copy_16_32", copy_16_32}, {"copy_1_64", copy_1_64}, {"copy_2_64", copy_2_64}, {"copy_4_64", copy_4_64},
    {"copy_8_64", copy_8_64}, {"copy_16_64", copy_16_64},
};

static void call(const Request& request, char* source, char* target) {
  std::string name = request.kernel;
  auto words = reinterpret_cast<unsigned long long*>(source);
  if (name == "fill") {
    fill(reinterpret_cast<unsigned long long*>(target), request.numbers[0], request.numbers[1]);
  } else if (name == "checksum") {
    checksum(words, request.numbers[0], reinterpret_cast<unsigned long long*>(target));
  } else if (name == "latch") {
    latch(reinterpret_cast<unsigned*>(source), reinterpret_cast<unsigned*>(target), request.numbers[0]);
  } else if (name == "arrive") {
    arrive(reinterpret_cast<unsigned*>(target));
  } else if (name == "spin") {
    const unsigned long long start = nanoseconds();
    spin(request.numbers[0]);
    const unsigned long long took = nanoseconds() - start;
    memcpy(target, &took, sizeof took);
  } else {
    kCopies.at(name)(target, source, request.box);
  }
}

static void read_exactly(void* bytes, size_t count) {
  if (count && fread(bytes, 1, count, stdin) != count) exit(1);
}

int main() {
  Request request;
  while (fread(&request, sizeof request, 1, stdin) == 1) {
    char* source = static_cast<char*>(malloc(request.source_bytes));
    char* target = static_cast<char*>(malloc(request.target_bytes));
    read_exactly(source, request.source_bytes);
    read_exactly(target, request.target_bytes);
    run_shuffled(request.blocks, request.threads, request.seed,
                 [&] { call(request, source + request.source_offset, target + request.target_offset); });
    fwrite(target, 1, request.target_bytes, stdout);
    fflush(stdout);
    free(source);
    free(target);
  }
}
