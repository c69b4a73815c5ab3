// One bit per byte of a block of 64: where a byte occurs, as in simdjson's first stage. And where bytes are no UTF-8.
#pragma once

#include "recordmill.h"

namespace rm {

constexpr int64_t BLOCK = 64;  // bytes of a mask: the bits of one uint64_t

// As many bytes as the processor looks at together, of which a comparison makes 0 or -1; and the highest bit of each.
#if defined(__AVX2__)
using Lanes = int8_t __attribute__((vector_size(32)));
RM_INLINE uint64_t high_bits(Lanes lanes) { return uint32_t(_mm256_movemask_epi8(reinterpret_cast<__m256i>(lanes))); }
#elif defined(__SSE2__)
using Lanes = int8_t __attribute__((vector_size(16)));
RM_INLINE uint64_t high_bits(Lanes lanes) { return uint32_t(_mm_movemask_epi8(reinterpret_cast<__m128i>(lanes))); }
#else
using Lanes = int8_t __attribute__((vector_size(8)));
RM_INLINE uint64_t high_bits(Lanes lanes) {
  return (reinterpret_cast<uint64_t>(lanes) >> 7 & 0x0101010101010101) * 0x0102040810204080 >> 56;
}
#endif

// A bit for each of 64 bytes: the highest one of what `look` makes of them.
template <typename Look>
RM_INLINE uint64_t block_mask(const uint8_t *at, Look look) {
  uint64_t mask = 0;
  for (size_t i = 0; i < BLOCK; i += sizeof(Lanes)) mask |= high_bits(look(load<Lanes>(at + i))) << i;
  return mask;
}

// Bit i is the highest bit of at[i]. Reads 64 bytes.
RM_INLINE uint64_t high_mask(const uint8_t *at) {
  return block_mask(at, [](Lanes lanes) { return lanes; });
}

// Bit i says whether at[i] == byte. Reads 64 bytes.
RM_INLINE uint64_t equal_mask(const uint8_t *at, uint8_t byte) {
  return block_mask(at, [byte](Lanes lanes) { return lanes == static_cast<int8_t>(byte); });
}

// The same for the block at `base` of `data`, where bytes beyond the end count as no match.
RM_INLINE uint64_t byte_mask(const uint8_t *data, int64_t base, int64_t size, uint8_t byte) {
  if (RM_LIKELY(size - base >= BLOCK)) return equal_mask(data + base, byte);
  uint64_t mask = 0;
  for (int64_t i = base; i < size; i++) mask |= static_cast<uint64_t>(data[i] == byte) << (i - base);
  return mask;
}

RM_INLINE bool is_ascii(const uint8_t *data, int64_t size) {
  uint8_t high = 0;
  for (int64_t i = 0; i < size; i++) high |= data[i];
  return high < 0x80;
}

// The place of the first byte of [at, stop) that begins no character of UTF-8 (RFC 3629: no surrogates, nothing
// overlong, nothing beyond U+10FFFF); -1 if all do.
inline int64_t find_bad_utf8(const uint8_t *data, int64_t at, int64_t stop) {
  while (at < stop) {
    if (stop - at >= 8 && !(load<uint64_t>(data + at) & 0x8080808080808080)) {
      at += 8;
      continue;
    }
    const uint8_t lead = data[at];
    if (lead < 0x80) {
      at++;
      continue;
    }
    const int64_t extra = lead >= 0xC2 && lead <= 0xDF ? 1 : (lead & 0xF0) == 0xE0 ? 2 : lead >= 0xF0 && lead <= 0xF4 ? 3 : 0;
    if (extra == 0 || extra >= stop - at) return at;
    const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (data[at + 1] < low || data[at + 1] > high) return at;
    for (int64_t i = 2; i <= extra; i++)
      if ((data[at + i] & 0xC0) != 0x80) return at;
    at += extra + 1;
  }
  return -1;
}

}  // namespace rm
