// What the processor can do, asked of it directly: __builtin_cpu_supports needs a run-time library that zig lacks.
#ifndef RECORDMILL_CPU_H
#define RECORDMILL_CPU_H

#include "common.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace rm {

struct Cpu {
  bool sse42 = false;       // SSE4.2 with CRC32, POPCNT and PCLMULQDQ
  bool v3 = false;          // x86-64-v3: AVX2, BMI1, BMI2, FMA
  bool vpclmulqdq = false;  // carry-less multiplication of 512 bits
};

inline Cpu detect_cpu() {
  Cpu cpu;
#if defined(__x86_64__)
  const auto bit = [](uint32_t word, int number) { return ((word >> number) & 1) != 0; };
  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return cpu;
  cpu.sse42 = bit(ecx, 20) && bit(ecx, 23) && bit(ecx, 1);
  const bool fma = bit(ecx, 12);
  uint32_t states = 0;  // XCR0: which registers the operating system saves
  if (bit(ecx, 27)) __asm__("xgetbv" : "=a"(states), "=d"(edx) : "c"(0));
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return cpu;
  const bool avx = (states & 6) == 6, avx512 = (states & 0xe6) == 0xe6;
  cpu.v3 = cpu.sse42 && avx && fma && bit(ebx, 5) && bit(ebx, 3) && bit(ebx, 8);
  cpu.vpclmulqdq = cpu.v3 && avx512 && bit(ebx, 16) && bit(ecx, 10);
#endif
  return cpu;
}

}  // namespace rm

#endif
