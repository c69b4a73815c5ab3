// A frame is a record in the form that a TFRecord file contains:
//
//   u64 length | u32 masked CRC32C of the length | payload | u32 masked CRC32C of the payload
//
// Source: TensorFlow, tensorflow/core/lib/io/record_writer.h.
#pragma once

#include "recordmill.h"

namespace rm {

// Returns the CRC32C of `size` bytes at `data`. crc: the CRC of the bytes before them, or 0.
uint32_t crc32c(uint32_t crc, const uint8_t *data, int64_t size);

// Returns the form in which TFRecord stores a CRC: rotated right by 15 bits, plus a constant (TensorFlow,
// tensorflow/core/lib/hash/crc32c.h).
RM_INLINE uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

constexpr int64_t HEADER_BYTES = 12, FOOTER_BYTES = 4, FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES;

// Writes header and footer around the payload at `frame + HEADER_BYTES`. Returns the CRC of the payload.
RM_INLINE uint32_t put_frame(uint8_t *frame, int64_t length) {
  store(frame, length);
  store(frame + 8, masked(crc32c(0, frame, 8)));
  const uint32_t crc = crc32c(0, frame + HEADER_BYTES, length);
  store(frame + HEADER_BYTES + length, masked(crc));
  return crc;
}

// Checks the header of a frame. Only `available` bytes of the frame can be read, and at most 12 are. The length is valid
// only if the result is GOOD.
//   is_final: the file ends after the available bytes. Otherwise too few bytes lead to NEEDS_MORE.
RM_INLINE FrameCode check_header(const uint8_t *frame, int64_t available, int64_t max_record_bytes, bool is_final) {
  if (available < HEADER_BYTES) return is_final ? FrameCode::SHORT_HEADER : FrameCode::NEEDS_MORE;
  const int64_t length = load<int64_t>(frame);
  if (load<uint32_t>(frame + 8) != masked(crc32c(0, frame, 8))) return FrameCode::BAD_HEADER_CRC;
  if (length < 0 || length > max_record_bytes) return FrameCode::TOO_LONG;  // the length is unsigned: < 0 is 2^63 or more
  if (length > available - FRAME_BYTES) return is_final ? FrameCode::SHORT_PAYLOAD : FrameCode::NEEDS_MORE;
  return FrameCode::GOOD;
}

}  // namespace rm
