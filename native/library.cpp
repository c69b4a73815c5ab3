// Which of the two builds of the library a machine can load.
#include "cpu.h"

namespace rm {

int64_t rm_built_level() {
#if defined(__AVX2__) && defined(__BMI2__) && defined(__FMA__)
  return 3;
#else
  return 0;
#endif
}

int64_t rm_machine_level() { return detect_cpu().v3 ? 3 : 0; }

}  // namespace rm
