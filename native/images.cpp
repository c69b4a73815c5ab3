// Images: the segments of JPEG files, and pixels resized as TensorFlow's kernels do it.
#include "masks.h"

namespace rm {
namespace {

RM_INLINE int64_t load_big16(const uint8_t *at) { return at[0] << 8 | at[1]; }

// Where the next marker stands, or the last byte: FF and neither 00 (a stuffed FF of coded data) nor FF (fill).
int64_t next_marker(const uint8_t *data, int64_t at, int64_t size) {
  for (; size - at > BLOCK; at += BLOCK) {
    uint64_t begins = equal_mask(data + at, 0xFF);
    if (!begins) continue;
    begins &= ~(equal_mask(data + at + 1, 0) | equal_mask(data + at + 1, 0xFF));
    if (begins) return at + first_bit(begins);
  }
  while (size - at > 1 && !(data[at] == 0xFF && data[at + 1] != 0 && data[at + 1] != 0xFF)) at++;
  return at;
}

// Walks the segments of an image (ITU-T T.81) up to its end; gives what it stopped at.
int64_t walk_jpeg(const uint8_t *data, int64_t size, int64_t *facts) {
  if (size < 3 || data[0] != 0xFF || data[1] != 0xD8 || data[2] != 0xFF) return RM_JPEG_OTHER;
  bool has_frame = false;
  for (int64_t at = 2;;) {
    at = next_marker(data, at, size);  // stray bytes between segments are skipped as libjpeg does
    facts[RM_JPEG_PLACE] = at;
    if (size - at < 2) return RM_JPEG_NO_END;
    const uint8_t marker = data[at + 1];
    if ((marker >= 0xD0 && marker <= 0xD7) || marker == 0x01) {  // RSTn, TEM: markers without a segment
      at += 2;
      continue;
    }
    if (marker == 0xD9) return !has_frame ? RM_JPEG_NO_FRAME : !facts[RM_JPEG_SCANS] ? RM_JPEG_NO_SCAN : RM_JPEG_GOOD;
    if (marker == 0xD8) return RM_JPEG_TWICE;
    if (size - at < 4) return RM_JPEG_CUT;
    const int64_t length = load_big16(data + at + 2);
    if (length < 2) return RM_JPEG_LENGTH;
    if (length > size - at - 2) return RM_JPEG_CUT;
    if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
      if (has_frame) return RM_JPEG_TWICE;
      has_frame = true;
      if (length < 8) return RM_JPEG_FRAME;
      facts[RM_JPEG_HEIGHT] = load_big16(data + at + 5);
      facts[RM_JPEG_WIDTH] = load_big16(data + at + 7);
      facts[RM_JPEG_COMPONENTS] = data[at + 9];
      facts[RM_JPEG_BITS] = data[at + 4];
      facts[RM_JPEG_MARKER] = marker;
      if (!facts[RM_JPEG_HEIGHT] || !facts[RM_JPEG_WIDTH] || !data[at + 9] || length != 8 + 3 * data[at + 9])
        return RM_JPEG_FRAME;
    } else if (marker == 0xDA) {
      if (!has_frame) return RM_JPEG_NO_FRAME;
      facts[RM_JPEG_SCANS]++;
    }
    at += 2 + length;
  }
}

}  // namespace
}  // namespace rm

RM_EXPORT int64_t rm_walk_jpegs(const uint8_t *data, int64_t data_size, const int64_t *ends, int64_t ends_size,
                                int64_t *facts, int64_t facts_size, int64_t *codes, int64_t codes_size) {
  if (codes_size != ends_size || facts_size != ends_size * RM_JPEG_FACTS) return RM_BOUNDS;
  int64_t start = 0;
  for (int64_t i = 0; i < ends_size; i++) {
    if (ends[i] < start || ends[i] > data_size) return RM_BOUNDS;
    codes[i] = rm::walk_jpeg(data + start, ends[i] - start, facts + i * RM_JPEG_FACTS);
    start = ends[i];
  }
  return 0;
}
