// CRC32C (Castagnoli) of bytes, and its masked form, which TFRecord files hold.
#ifndef RECORDMILL_CRC32C_H
#define RECORDMILL_CRC32C_H

#include "common.h"

#if defined(__SSE4_2__)
#include <immintrin.h>
#endif

namespace rm {

// The CRC of `size` bytes at `data`, going on from `crc`, the CRC of what stood before them.
uint32_t crc32c(uint32_t crc, const uint8_t *data, int64_t size);

// The CRC of eight bytes, given as a little-endian word: the length at the start of a frame.
RM_INLINE uint32_t crc32c_of_word(uint64_t word) {
#if defined(__SSE4_2__)
  return ~static_cast<uint32_t>(_mm_crc32_u64(~0u, word));
#else
  uint8_t bytes[8];
  store(bytes, word);
  return crc32c(0, bytes, 8);
#endif
}

// TFRecord's form of a CRC: rotated right by 15 bits, plus a constant (TensorFlow, lib/hash/crc32c.h).
RM_INLINE uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }
RM_INLINE uint32_t unmasked(uint32_t crc) {
  const uint32_t rotated = crc - 0xa282ead8u;
  return (rotated >> 17) | (rotated << 15);
}

}  // namespace rm

#endif
