// CRC32C (Castagnoli) of bytes, and its masked form, which TFRecord files hold.
#ifndef RECORDMILL_CRC32C_H
#define RECORDMILL_CRC32C_H

#include "common.h"

namespace rm {

// The CRC of `size` bytes at `data`, going on from `crc`, the CRC of what stood before them.
uint32_t crc32c(uint32_t crc, const uint8_t *data, int64_t size);

RM_INLINE uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }
RM_INLINE uint32_t unmasked(uint32_t crc) {
  const uint32_t rotated = crc - 0xa282ead8u;
  return (rotated >> 17) | (rotated << 15);
}

}  // namespace rm

#endif
