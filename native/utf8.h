// Where bytes are no UTF-8 (RFC 3629: no surrogates, nothing overlong, nothing beyond U+10FFFF).
#ifndef RECORDMILL_UTF8_H
#define RECORDMILL_UTF8_H

#include "common.h"

namespace rm {

RM_INLINE bool is_ascii(const uint8_t *data, int64_t size) {
  uint8_t high = 0;
  for (int64_t i = 0; i < size; i++) high |= data[i];
  return high < 0x80;
}

// The place of the first byte of [at, stop) that begins no character; -1 if all do.
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

#endif
