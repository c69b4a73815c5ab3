// One bit per byte of a block of 64: where a byte occurs. As in simdjson's first stage.
#ifndef RECORDMILL_MASKS_H
#define RECORDMILL_MASKS_H

#include "common.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace rm {

constexpr int64_t BLOCK = 64;  // bytes per mask: the bits of one uint64_t

// Bit i says whether at[i] == byte. Reads 64 bytes.
RM_INLINE uint64_t equal_mask(const uint8_t *at, uint8_t byte) {
#if defined(__AVX2__)
  const __m256i wanted = _mm256_set1_epi8(static_cast<char>(byte));
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at + 32));
  const uint32_t first = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, wanted)));
  const uint32_t second = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, wanted)));
  return first | static_cast<uint64_t>(second) << 32;
#elif defined(__SSE2__)
  const __m128i wanted = _mm_set1_epi8(static_cast<char>(byte));
  uint64_t mask = 0;
  for (int quarter = 0; quarter < 4; quarter++) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(at + 16 * quarter));
    const uint32_t bits = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, wanted)));
    mask |= static_cast<uint64_t>(bits) << (16 * quarter);
  }
  return mask;
#else
  uint64_t mask = 0;
  for (int i = 0; i < 64; i++) mask |= static_cast<uint64_t>(at[i] == byte) << i;
  return mask;
#endif
}

// Bit i is the highest bit of at[i]. Reads 64 bytes.
RM_INLINE uint64_t high_mask(const uint8_t *at) {
  uint64_t mask = 0;
#if defined(__AVX2__)
  for (int half = 0; half < 2; half++) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at + 32 * half));
    mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(bytes))) << (32 * half);
  }
#elif defined(__SSE2__)
  for (int quarter = 0; quarter < 4; quarter++) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(at + 16 * quarter));
    mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(bytes))) << (16 * quarter);
  }
#else
  for (int i = 0; i < 64; i++) mask |= static_cast<uint64_t>(at[i] >> 7) << i;
#endif
  return mask;
}

// The same for the block at `base` of `data`, where bytes beyond the end count as no match.
RM_INLINE uint64_t byte_mask(const uint8_t *data, int64_t base, int64_t size, uint8_t byte) {
  if (RM_LIKELY(size - base >= BLOCK)) return equal_mask(data + base, byte);
  uint64_t mask = 0;
  for (int64_t i = base; i < size; i++) mask |= static_cast<uint64_t>(data[i] == byte) << (i - base);
  return mask;
}

}  // namespace rm

#endif
