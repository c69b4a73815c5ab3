// Which of the two builds of the library a machine can load.
#include "common.h"

RM_EXPORT int64_t rm_built_level(void) {
#if defined(__AVX2__) && defined(__BMI2__) && defined(__FMA__)
  return 3;
#else
  return 0;
#endif
}

RM_EXPORT int64_t rm_machine_level(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool third = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                     __builtin_cpu_supports("fma") && __builtin_cpu_supports("popcnt") &&
                     __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2");
  return third ? 3 : 0;
#else
  return 0;
#endif
}
