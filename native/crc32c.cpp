// Three ways to a CRC, all with the same answer: folding by carry-less multiplication for long runs of bytes, the CRC
// instruction for short ones, a table where the processor has neither. The processor is asked when the library runs.
#include "frames.h"

#if defined(__x86_64__)
#include <cpuid.h>
#define RM_INSTRUCTION __attribute__((target("sse4.2,crc32")))
#define RM_FOLDING __attribute__((target("sse4.2,crc32,avx512f,vpclmulqdq")))
#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#define RM_INSTRUCTION
#endif

namespace rm {
namespace {

// What the processor can do, asked of it directly: __builtin_cpu_supports needs a run-time library that zig lacks.
struct Cpu {
  bool crc = false;         // the CRC instruction; on x86 SSE4.2, POPCNT and PCLMULQDQ, too
  bool v3 = false;          // x86-64-v3: AVX2, BMI1, BMI2, FMA
  bool vpclmulqdq = false;  // carry-less multiplication of 512 bits
};

Cpu detect_cpu() {
  Cpu cpu;
#if defined(__x86_64__)
  const auto bit = [](uint32_t word, int number) { return ((word >> number) & 1) != 0; };
  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return cpu;
  cpu.crc = bit(ecx, 20) && bit(ecx, 23) && bit(ecx, 1);
  const bool fma = bit(ecx, 12);
  uint32_t states = 0;  // XCR0: which registers the operating system saves
  if (bit(ecx, 27)) __asm__("xgetbv" : "=a"(states), "=d"(edx) : "c"(0));
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return cpu;
  const bool avx = (states & 6) == 6, avx512 = (states & 0xe6) == 0xe6;
  cpu.v3 = cpu.crc && avx && fma && bit(ebx, 5) && bit(ebx, 3) && bit(ebx, 8);
  cpu.vpclmulqdq = cpu.v3 && avx512 && bit(ebx, 16) && bit(ecx, 10);
#elif defined(__aarch64__) && defined(__linux__)
  cpu.crc = (getauxval(AT_HWCAP) & 1 << 7) != 0;  // HWCAP_CRC32
#elif defined(__aarch64__)
  cpu.crc = true;
#endif
  return cpu;
}

constexpr uint32_t POLYNOMIAL = 0x82F63B78;  // reflected

// x^exponent mod P, reflected: the bit of x^0 is the highest of 32.
constexpr uint32_t power(int exponent) {
  uint32_t value = 0x80000000;
  for (int i = 0; i < exponent; i++) value = (value >> 1) ^ (value & 1 ? POLYNOMIAL : 0);
  return value;
}

// What a register becomes when `bytes` zeros follow: the XOR of one number of the table for each of its four bytes.
template <int bytes>
struct ZerosTable {
  uint32_t table[4][256];
  constexpr ZerosTable() : table() {
    for (int place = 0; place < 4; place++) {
      for (int bit = 0; bit < 8; bit++)  // the bit stands for x^(31 - 8 * place - bit)
        table[place][1 << bit] = power(8 * bytes + 31 - 8 * place - bit);
      for (int byte = 1; byte < 256; byte++) {
        const int rest = byte & (byte - 1);
        table[place][byte] = table[place][rest] ^ table[place][byte ^ rest];
      }
    }
  }
  RM_INLINE uint64_t operator()(uint64_t crc) const {
    return table[0][crc & 255] ^ table[1][(crc >> 8) & 255] ^ table[2][(crc >> 16) & 255] ^ table[3][(crc >> 24) & 255];
  }
};

uint32_t by_table(uint32_t crc, const uint8_t *data, int64_t size) {
  static constexpr ZerosTable<1> AFTER;
  for (; size > 0; data++, size--) crc = (crc >> 8) ^ AFTER.table[0][(crc ^ *data) & 255];
  return crc;
}

#if defined(RM_INSTRUCTION)
#if defined(__x86_64__)
RM_INSTRUCTION RM_INLINE uint64_t step64(uint64_t crc, uint64_t word) { return _mm_crc32_u64(crc, word); }
RM_INSTRUCTION RM_INLINE uint32_t step8(uint32_t crc, uint8_t byte) { return _mm_crc32_u8(crc, byte); }
#else
// By name: compilers give the intrinsics to code for newer processors alone.
RM_INLINE uint32_t step64(uint64_t crc, uint64_t word) {
  __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %1" : "+r"(crc) : "r"(word));
  return static_cast<uint32_t>(crc);
}
RM_INLINE uint32_t step8(uint32_t crc, uint8_t byte) {
  __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
  return crc;
}
#endif

// The instruction takes three cycles and one can begin in each: three streams at once, while there are three of
// `bytes`.
template <int bytes>
RM_INSTRUCTION RM_INLINE uint64_t three_streams(uint64_t crc, const uint8_t *&data, int64_t &size) {
  static constexpr ZerosTable<bytes> AFTER;
  for (; size >= 3 * bytes; data += 3 * bytes, size -= 3 * bytes) {
    uint64_t second = 0, third = 0;
    for (int i = 0; i < bytes; i += 8) {
      crc = step64(crc, load<uint64_t>(data + i));
      second = step64(second, load<uint64_t>(data + i + bytes));
      third = step64(third, load<uint64_t>(data + i + 2 * bytes));
    }
    crc = AFTER(AFTER(crc) ^ second) ^ third;
  }
  return crc;
}

RM_INSTRUCTION uint32_t by_instruction(uint32_t register32, const uint8_t *data, int64_t size) {
  uint64_t crc = register32;
  if (size >= 3 * 64) {
    crc = three_streams<1024>(crc, data, size);  // joining costs 16 look-ups: 2 % of it
    crc = three_streams<64>(crc, data, size);    // so that a record of 200 bytes already has three
  }
  for (; size >= 8; data += 8, size -= 8) crc = step64(crc, load<uint64_t>(data));
  uint32_t last = static_cast<uint32_t>(crc);
  for (; size > 0; data++, size--) last = step8(last, *data);
  return last;
}

#endif

#if defined(RM_FOLDING)

constexpr int64_t STEP_BYTES = 256;
constexpr int64_t LEAST_FOLDED = 768;  // bytes from which folding pays

// The 128-bit numbers of `state` as many bytes further on as the factors say, plus `next`.
RM_FOLDING RM_INLINE __m512i moved(__m512i state, __m512i factors, __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(state, factors, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(state, factors, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);  // the XOR of three
}

// Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ" (Intel, 2009), with the reflected
// remainder of 64 bytes taken by the CRC instruction. size: a multiple of STEP_BYTES, at least one.
RM_FOLDING uint32_t by_folding(uint32_t crc, const uint8_t *data, int64_t size) {
  constexpr uint32_t STEP_LOW = power(8 * STEP_BYTES + 31), STEP_HIGH = power(8 * STEP_BYTES - 33);
  constexpr uint32_t VECTOR_LOW = power(8 * 64 + 31), VECTOR_HIGH = power(8 * 64 - 33);
  const __m512i by_step = _mm512_set4_epi64(STEP_HIGH, STEP_LOW, STEP_HIGH, STEP_LOW);
  const __m512i by_vector = _mm512_set4_epi64(VECTOR_HIGH, VECTOR_LOW, VECTOR_HIGH, VECTOR_LOW);
  __m512i state[4];
  for (int i = 0; i < 4; i++) state[i] = _mm512_loadu_si512(data + 64 * i);
  state[0] = _mm512_xor_si512(state[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  for (data += STEP_BYTES, size -= STEP_BYTES; size > 0; data += STEP_BYTES, size -= STEP_BYTES)
    for (int i = 0; i < 4; i++) state[i] = moved(state[i], by_step, _mm512_loadu_si512(data + 64 * i));
  __m512i whole = state[0];
  for (int i = 1; i < 4; i++) whole = moved(whole, by_vector, state[i]);
  uint64_t words[8];
  _mm512_storeu_si512(words, whole);
  uint64_t result = 0;
  for (const uint64_t word : words) result = step64(result, word);
  return static_cast<uint32_t>(result);
}

#endif

// The best way that this processor has.
RM_INLINE int best_way() {
  static int known = -1;  // threads that ask at once write the same
  int way = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (RM_UNLIKELY(way < 0)) {
    const Cpu cpu = detect_cpu();
    way = cpu.vpclmulqdq ? CRC_FOLDING : cpu.crc ? CRC_INSTRUCTION : CRC_TABLE;
    __atomic_store_n(&known, way, __ATOMIC_RELAXED);
  }
  return way;
}

uint32_t crc_by(int way, uint32_t crc, const uint8_t *data, int64_t size) {
  crc = ~crc;
#if defined(RM_FOLDING)
  if (size >= LEAST_FOLDED && way == CRC_FOLDING) {
    const int64_t folded = size / STEP_BYTES * STEP_BYTES;
    crc = by_folding(crc, data, folded);
    data += folded;
    size -= folded;
  }
#endif
#if defined(RM_INSTRUCTION)
  if (RM_LIKELY(way != CRC_TABLE)) return ~by_instruction(crc, data, size);
#endif
  return ~by_table(crc, data, size);
}

}  // namespace

uint32_t crc32c(uint32_t crc, const uint8_t *data, int64_t size) { return crc_by(best_way(), crc, data, size); }

int64_t rm_crc32c(ByteSpan data, int64_t crc, int64_t way) {
  const int best = best_way();
  if (crc < 0 || crc > UINT32_MAX || way < CRC_TABLE || (way > best && way != CRC_BEST)) return BOUNDS;
  return crc_by(min(static_cast<int>(way), best), static_cast<uint32_t>(crc), data.data, data.size);
}

int64_t rm_machine_level() { return detect_cpu().v3 ? 3 : 0; }

}  // namespace rm
