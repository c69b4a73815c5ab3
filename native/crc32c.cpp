#include "crc32c.h"

namespace rm {
namespace {

constexpr uint32_t POLYNOMIAL = 0x82F63B78;  // reflected

struct Tables {
  uint32_t of[8][256];
  constexpr Tables() : of() {
    for (uint32_t byte = 0; byte < 256; byte++) {
      uint32_t crc = byte;
      for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
      of[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
      for (uint32_t byte = 0; byte < 256; byte++)
        of[table][byte] = (of[table - 1][byte] >> 8) ^ of[0][of[table - 1][byte] & 255];
  }
};
constexpr Tables TABLES;

}  // namespace

// Eight bytes a step through eight tables ("slicing by 8").
uint32_t crc32c(uint32_t crc, const uint8_t *data, int64_t size) {
  crc = ~crc;
  for (; size >= 8; data += 8, size -= 8) {
    const uint64_t word = load<uint64_t>(data) ^ crc;
    crc = 0;
    for (int i = 0; i < 8; i++) crc ^= TABLES.of[7 - i][(word >> (8 * i)) & 255];
  }
  for (; size > 0; data++, size--) crc = (crc >> 8) ^ TABLES.of[0][(crc ^ *data) & 255];
  return ~crc;
}

}  // namespace rm

RM_EXPORT int64_t rm_crc32c(const uint8_t *data, int64_t data_size, int64_t crc) {
  if (crc < 0 || crc > UINT32_MAX) return RM_BOUNDS;
  return rm::crc32c(static_cast<uint32_t>(crc), data, data_size);
}
