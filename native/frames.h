// A frame, as which a TFRecord file holds a record: u64 length, u32 masked CRC32C of it, payload, u32 masked CRC32C of
// the payload.
#pragma once

#include "recordmill.h"

namespace rm {

// The CRC of `size` bytes at `data`, going on from `crc`, the CRC of what stood before them.
uint32_t crc32c(uint32_t crc, const uint8_t *data, int64_t size);

// TFRecord's form of a CRC: rotated right by 15 bits, plus a constant (TensorFlow, lib/hash/crc32c.h).
RM_INLINE uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

constexpr int64_t HEADER_BYTES = 12, FOOTER_BYTES = 4, FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES;

// Writes header and footer around a payload that stands at `frame + HEADER_BYTES`; gives the payload's CRC.
RM_INLINE uint32_t put_frame(uint8_t *frame, int64_t length) {
  store(frame, length);
  store(frame + 8, masked(crc32c(0, frame, 8)));
  const uint32_t crc = crc32c(0, frame + HEADER_BYTES, length);
  store(frame + HEADER_BYTES + length, masked(crc));
  return crc;
}

// What is wrong with the header of a frame of which `left` bytes are there: GOOD or another code of a scan. MORE
// if, not final, that is too few to say. Reads 12 bytes at most. The length may be used after GOOD only.
RM_INLINE int frame_fault(const uint8_t *frame, int64_t left, int64_t max_record_bytes, bool final) {
  if (left < HEADER_BYTES) return final ? SHORT_HEADER : MORE;
  const int64_t length = load<int64_t>(frame);
  if (load<uint32_t>(frame + 8) != masked(crc32c(0, frame, 8))) return HEADER_CRC;
  if (length < 0 || length > max_record_bytes) return FRAME_TOO_LONG;  // below 0: 2^63 and more
  if (length > left - FRAME_BYTES) return final ? SHORT_PAYLOAD : MORE;
  return GOOD;
}

}  // namespace rm
