// Bit masks of blocks of 64 bytes, as in simdjson's first stage, and UTF-8 validation. Bit i of a mask is about byte i:
//
//   bytes        a , " b , c " \n
//   mask of ,    0 1 0 0 1 0 0 0
//   mask of "    0 0 1 0 0 0 1 0
//
// first_bit(mask) is the index of the first match, and mask & (mask - 1) removes it.
#pragma once

#include "recordmill.h"

namespace rm {

constexpr int64_t BLOCK = 64;  // bytes of a mask: the bits of one uint64_t

// As many bytes as the processor compares at once. A comparison makes each of them 0 or -1; high_bits collects the highest
// bit of each in one number.
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

// Returns the highest bit of each of 64 bytes after `compare` was applied to them.
template <typename Compare>
RM_INLINE uint64_t block_mask(const uint8_t *bytes, Compare compare) {
  uint64_t mask = 0;
  for (size_t i = 0; i < BLOCK; i += sizeof(Lanes)) mask |= high_bits(compare(load<Lanes>(bytes + i))) << i;
  return mask;
}

// Bit i is the highest bit of bytes[i]. Reads 64 bytes.
RM_INLINE uint64_t high_mask(const uint8_t *bytes) {
  return block_mask(bytes, [](Lanes lanes) { return lanes; });
}

// Bit i is 1 if bytes[i] == byte. Reads 64 bytes.
RM_INLINE uint64_t equal_mask(const uint8_t *bytes, uint8_t byte) {
  return block_mask(bytes, [byte](Lanes lanes) { return lanes == static_cast<int8_t>(byte); });
}

// As equal_mask, for the block at offset `base` of `data`. Bytes after the end never match, and are not read.
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

// Returns the offset of the first byte of data[start : stop] that does not begin a valid UTF-8 character, or -1.
// Surrogates, overlong forms and characters beyond U+10FFFF are invalid (RFC 3629).
inline int64_t find_bad_utf8(const uint8_t *data, int64_t start, int64_t stop) {
  int64_t at = start;
  while (at < stop) {
    if (stop - at >= 8 && !(load<uint64_t>(data + at) & 0x8080808080808080)) {  // eight ASCII characters
      at += 8;
      continue;
    }
    const uint8_t lead = data[at];
    if (lead < 0x80) {
      at++;
      continue;
    }
    const int64_t extra =
        lead >= 0xC2 && lead <= 0xDF ? 1 : (lead & 0xF0) == 0xE0 ? 2 : lead >= 0xF0 && lead <= 0xF4 ? 3 : 0;
    if (extra == 0 || extra >= stop - at) return at;
    // The second byte has a smaller range after these leads, which excludes overlong forms and surrogates.
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
