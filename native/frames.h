// A frame: how a TFRecord file holds a record. u64 length, u32 masked CRC of it, payload, u32 masked CRC of the
// payload.
#ifndef RECORDMILL_FRAMES_H
#define RECORDMILL_FRAMES_H

#include "crc32c.h"

namespace rm {

constexpr int64_t HEADER_BYTES = 12, FOOTER_BYTES = 4, FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES;

// Writes header and footer around a payload that stands at `frame + HEADER_BYTES`; gives the payload's CRC.
RM_INLINE uint32_t put_frame(uint8_t *frame, int64_t length) {
  store(frame, length);
  store(frame + 8, masked(crc32c_of_word(static_cast<uint64_t>(length))));
  const uint32_t crc = crc32c(0, frame + HEADER_BYTES, length);
  store(frame + HEADER_BYTES + length, masked(crc));
  return crc;
}

// What is wrong with the header of a frame of which `left` bytes are there: GOOD or another code of a scan. MORE
// if, not final, that is too few to say. Reads 12 bytes at most. The length may be used after GOOD only.
RM_INLINE int frame_fault(const uint8_t *frame, int64_t left, int64_t max_record_bytes, bool final) {
  if (left < HEADER_BYTES) return final ? SHORT_HEADER : MORE;
  const int64_t length = load<int64_t>(frame);
  if (unmasked(load<uint32_t>(frame + 8)) != crc32c_of_word(static_cast<uint64_t>(length))) return HEADER_CRC;
  if (length < 0 || length > max_record_bytes) return FRAME_TOO_LONG;  // below 0: 2^63 and more
  if (length > left - FRAME_BYTES) return final ? SHORT_PAYLOAD : MORE;
  return GOOD;
}

}  // namespace rm

#endif
