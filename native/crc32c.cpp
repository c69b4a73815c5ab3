// CRC32C by three methods with the same result: folding by carry-less multiplication for long inputs, the CRC instruction
// for short ones, and a table if the processor has neither. The processor is examined when the library is loaded.
#include "frames.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace rm {
namespace {

// What the processor can do. __builtin_cpu_supports would need a run-time library that zig lacks.
struct Cpu {
  bool crc = false;         // the CRC instruction; on x86 also SSE4.2 and POPCNT
  bool v3 = false;          // x86-64-v3: AVX2, BMI1, BMI2, FMA
  bool vpclmulqdq = false;  // carry-less multiplication of 512 bits
};

Cpu detect_cpu() {
  Cpu cpu;
#if defined(__x86_64__)
  const auto bit = [](uint32_t word, int number) { return ((word >> number) & 1) != 0; };
  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return cpu;
  cpu.crc = bit(ecx, 20) && bit(ecx, 23);
  const bool fma = bit(ecx, 12);
  uint32_t states = 0;  // XCR0: which registers the operating system saves
  if (bit(ecx, 27)) __asm__("xgetbv" : "=a"(states), "=d"(edx) : "c"(0));
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return cpu;
  cpu.v3 = cpu.crc && (states & 6) == 6 && fma && bit(ebx, 5) && bit(ebx, 3) && bit(ebx, 8);
  cpu.vpclmulqdq = cpu.v3 && (states & 0xe6) == 0xe6 && bit(ebx, 16) && bit(ecx, 10);
#elif defined(__aarch64__) && defined(__linux__)
  cpu.crc = (getauxval(AT_HWCAP) & 1 << 7) != 0;  // HWCAP_CRC32
#elif defined(__aarch64__)
  cpu.crc = true;
#endif
  return cpu;
}

constexpr uint32_t POLYNOMIAL = 0x82F63B78;  // reflected: the bit of x^0 is the highest of 32

// Returns value * x^exponent mod P, reflected.
constexpr uint32_t times_power(uint32_t value, int exponent) {
  for (int i = 0; i < exponent; i++) value = (value >> 1) ^ (value & 1 ? POLYNOMIAL : 0);
  return value;
}

// The CRC register after a zero byte, by the lowest byte of the register before it.
struct ByteTable {
  uint32_t after[256];
  constexpr ByteTable() : after() {
    for (uint32_t byte = 0; byte < 256; byte++) after[byte] = times_power(byte, 8);
  }
};

uint32_t crc_by_table(uint32_t crc, const uint8_t *data, int64_t size) {
  static constexpr ByteTable TABLE;
  for (; size > 0; data++, size--) crc = (crc >> 8) ^ TABLE.after[(crc ^ *data) & 255];
  return crc;
}

#if defined(__x86_64__)
#define RM_INSTRUCTION __attribute__((target("sse4.2,crc32")))
RM_INSTRUCTION RM_INLINE uint64_t step64(uint64_t crc, uint64_t word) { return _mm_crc32_u64(crc, word); }
RM_INSTRUCTION RM_INLINE uint32_t step8(uint32_t crc, uint8_t byte) { return _mm_crc32_u8(crc, byte); }
#elif defined(__aarch64__)
#define RM_INSTRUCTION
// In assembly, since compilers offer the intrinsics only to code for newer processors.
RM_INLINE uint64_t step64(uint64_t crc, uint64_t word) {
  __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %1" : "+r"(crc) : "r"(word));
  return crc;
}
RM_INLINE uint32_t step8(uint32_t crc, uint8_t byte) {
  __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
  return crc;
}
#endif

#if defined(RM_INSTRUCTION)
RM_INSTRUCTION uint32_t crc_by_instruction(uint32_t register_before, const uint8_t *data, int64_t size) {
  uint64_t crc = register_before;
  for (; size >= 8; data += 8, size -= 8) crc = step64(crc, load<uint64_t>(data));
  uint32_t last = static_cast<uint32_t>(crc);
  for (; size > 0; data++, size--) last = step8(last, *data);
  return last;
}
#endif

#if defined(__x86_64__)
constexpr int VECTORS = 2, STEP = 64 * VECTORS;

// Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ" (Intel, 2009). The state is multiplied by
// the power of x that moves it one step ahead, and added to the bytes there. Only the last step goes through the CRC
// instruction, which has a latency of 3 cycles for 8 bytes. size: a positive multiple of STEP.
__attribute__((target("sse4.2,crc32,avx512f,vpclmulqdq")))
uint32_t crc_by_folding(uint32_t crc, const uint8_t *data, int64_t size) {
  constexpr uint32_t ONE = 0x80000000;  // x^0, reflected
  constexpr uint32_t LOW = times_power(ONE, 8 * STEP + 31), HIGH = times_power(ONE, 8 * STEP - 33);
  const __m512i factors = _mm512_set4_epi64(HIGH, LOW, HIGH, LOW);
  __m512i state[VECTORS];
  for (int i = 0; i < VECTORS; i++) state[i] = _mm512_loadu_si512(data + 64 * i);
  state[0] = _mm512_xor_si512(state[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  for (data += STEP, size -= STEP; size > 0; data += STEP, size -= STEP) {
    for (int i = 0; i < VECTORS; i++) {
      const __m512i low = _mm512_clmulepi64_epi128(state[i], factors, 0x00);
      const __m512i high = _mm512_clmulepi64_epi128(state[i], factors, 0x11);
      state[i] = _mm512_ternarylogic_epi64(low, high, _mm512_loadu_si512(data + 64 * i), 0x96);  // the XOR of three
    }
  }
  uint8_t last[STEP];
  memcpy(last, state, STEP);
  return crc_by_instruction(0, last, STEP);
}
#endif

const Cpu CPU = detect_cpu();  // when the library is loaded
const CrcMethod BEST_METHOD = CPU.vpclmulqdq ? CrcMethod::FOLDING : CPU.crc ? CrcMethod::INSTRUCTION : CrcMethod::TABLE;

uint32_t crc_by(CrcMethod method, uint32_t crc, const uint8_t *data, int64_t size) {
  crc = ~crc;
#if defined(__x86_64__)
  if (size >= 2 * STEP && method == CrcMethod::FOLDING) {
    const int64_t folded = size / STEP * STEP;
    crc = crc_by_folding(crc, data, folded);
    data += folded;
    size -= folded;
  }
#endif
#if defined(RM_INSTRUCTION)
  if (RM_LIKELY(method != CrcMethod::TABLE)) return ~crc_by_instruction(crc, data, size);
#endif
  return ~crc_by_table(crc, data, size);
}

}  // namespace

uint32_t crc32c(uint32_t crc, const uint8_t *data, int64_t size) { return crc_by(BEST_METHOD, crc, data, size); }

int64_t rm_crc32c(ByteSpan data, int64_t crc, CrcMethod method) {
  if (crc < 0 || crc > UINT32_MAX || method < CrcMethod::TABLE) return BOUNDS;
  return crc_by(min(method, BEST_METHOD), static_cast<uint32_t>(crc), data.data, data.size);
}

int64_t rm_machine_level() { return CPU.v3 ? 3 : 0; }

}  // namespace rm
