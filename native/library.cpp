// Which of the two builds of the library a machine can load.
#include "cpu.h"

RM_EXPORT int64_t rm_built_level(void) {
#if defined(__AVX2__) && defined(__BMI2__) && defined(__FMA__)
  return 3;
#else
  return 0;
#endif
}

RM_EXPORT int64_t rm_machine_level(void) { return rm::detect_cpu().v3 ? 3 : 0; }
