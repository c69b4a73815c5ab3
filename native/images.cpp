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

namespace rm {
namespace {

// A part of an image's lines of numbers, as it stands.
struct Lines {
  const uint8_t *first;
  int64_t stride, rows, columns;

  RM_INLINE const uint8_t *operator[](int64_t row) const { return first + row * stride; }
};

// Gives no rows where the part does not lie in the pixels.
Lines part_of(Span<const uint8_t> pixels, const rm_pixel_part *part) {
  if (part->line < 1 || !Span<const uint8_t>{nullptr, part->line}.holds(part->start, part->columns)) return {};
  if (!Span<const uint8_t>{nullptr, pixels.size / part->line}.holds(part->top, part->rows)) return {};
  return {pixels.data + part->top * part->line + part->start, part->line, part->rows, part->columns};
}

// Where lines of numbers go: rounded to bytes, or as factor * number - offset.
struct Output {
  uint8_t *bytes;
  float *floats;
  const float *factor, *offset;
  int64_t rows, width;

  void put(int64_t row, const float *line) const {
    if (bytes) {
      constexpr float ROUNDS = 3 << 22;  // added to a number below 2^22, and taken off, it rounds half to even
      uint8_t *const out = bytes + row * width;
      for (int64_t i = 0; i < width; i++) out[i] = static_cast<uint8_t>(static_cast<int32_t>(line[i] + ROUNDS - ROUNDS));
    } else {
      float *const out = floats + row * width;
      for (int64_t i = 0; i < width; i++) out[i] = line[i] * factor[i] - offset[i];
    }
  }
};

// Gives no rows where the arrays do not fit.
Output output_of(Span<uint8_t> bytes, Span<float> floats, Span<const float> factor, Span<const float> offset) {
  const int64_t width = factor.size, size = bytes.data ? bytes.size : floats.size;
  if (width < 1 || offset.size != width || size % width) return {};
  return {bytes.data, floats.data, factor.data, offset.data, size / width, width};
}

bool are_below(Span<const uint32_t> places, int64_t size) {
  uint32_t most = 0;
  for (int64_t i = 0; i < places.size; i++) most = max(most, places[i]);
  return most < size;
}

RM_INLINE void to_floats(const uint8_t *from, int64_t size, float *to) {
  for (int64_t i = 0; i < size; i++) to[i] = from[i];
}

}  // namespace
}  // namespace rm

using namespace rm;

RM_EXPORT int64_t rm_convert_pixels(const uint8_t *pixels, int64_t pixels_size, const rm_pixel_part *part,
                                    const float *factor, int64_t factor_size, const float *offset, int64_t offset_size,
                                    float *room, int64_t room_size, uint8_t *bytes, int64_t bytes_size, float *floats,
                                    int64_t floats_size) {
  const Lines lines = part_of({pixels, pixels_size}, part);
  const Output out = output_of({bytes, bytes_size}, {floats, floats_size}, {factor, factor_size}, {offset, offset_size});
  if (lines.rows < 1 || lines.rows != out.rows || lines.columns != out.width || room_size < out.width) return RM_BOUNDS;
  for (int64_t y = 0; y < out.rows; y++) {
    to_floats(lines[y], out.width, room);
    out.put(y, room);
  }
  return 0;
}

RM_EXPORT int64_t rm_resize_bilinear(const uint8_t *pixels, int64_t pixels_size, const rm_pixel_part *part,
                                     const uint32_t *above, int64_t above_size, const uint32_t *below,
                                     int64_t below_size, const float *down, int64_t down_size, const uint32_t *lower,
                                     int64_t lower_size, const uint32_t *upper, int64_t upper_size,
                                     const float *along, int64_t along_size, const float *factor, int64_t factor_size,
                                     const float *offset, int64_t offset_size, float *room, int64_t room_size,
                                     uint8_t *bytes, int64_t bytes_size, float *floats, int64_t floats_size) {
  const Lines lines = part_of({pixels, pixels_size}, part);
  const Output out = output_of({bytes, bytes_size}, {floats, floats_size}, {factor, factor_size}, {offset, offset_size});
  const int64_t width = out.width;
  if (lines.rows < 1 || above_size != out.rows || below_size != out.rows || down_size != out.rows) return RM_BOUNDS;
  if (lower_size != width || upper_size != width || along_size != width) return RM_BOUNDS;
  if (room_size < 3 * width || room_size - 3 * width < lines.columns) return RM_BOUNDS;
  if (!are_below({above, above_size}, lines.rows) || !are_below({below, below_size}, lines.rows)) return RM_BOUNDS;
  if (!are_below({lower, width}, lines.columns) || !are_below({upper, width}, lines.columns)) return RM_BOUNDS;
  struct Gathered {  // a source line at the columns wanted
    float *numbers;
    int64_t row;
  } top{room, -1}, bottom{room + width, -1};
  float *const line = room + 2 * width, *const source = room + 3 * width;
  const auto gather = [&](Gathered &to, int64_t row) {
    if (to.row == row) return;
    to.row = row;
    to_floats(lines[row], lines.columns, source);
    for (int64_t i = 0; i < width; i++) {
      const float value = source[lower[i]];
      to.numbers[i] = value + (source[upper[i]] - value) * along[i];
    }
  };
  for (int64_t y = 0; y < out.rows; y++) {
    if (above[y] == bottom.row) {
      const Gathered before = top;
      top = bottom, bottom = before;
    }
    gather(top, above[y]);
    gather(bottom, below[y]);
    for (int64_t i = 0; i < width; i++) line[i] = top.numbers[i] + (bottom.numbers[i] - top.numbers[i]) * down[y];
    out.put(y, line);
  }
  return 0;
}

RM_EXPORT int64_t rm_resize_antialiased(const uint8_t *pixels, int64_t pixels_size, const rm_pixel_part *part,
                                        const uint32_t *rows, int64_t rows_size, const float *row_weights,
                                        int64_t row_weights_size, const uint32_t *columns, int64_t columns_size,
                                        const float *column_weights, int64_t column_weights_size, const float *factor,
                                        int64_t factor_size, const float *offset, int64_t offset_size, float *room,
                                        int64_t room_size, uint8_t *bytes, int64_t bytes_size, float *floats,
                                        int64_t floats_size) {
  const Lines lines = part_of({pixels, pixels_size}, part);
  const Output out = output_of({bytes, bytes_size}, {floats, floats_size}, {factor, factor_size}, {offset, offset_size});
  const int64_t width = out.width;
  if (lines.rows < 1 || out.rows < 1 || rows_size % out.rows || columns_size % width) return RM_BOUNDS;
  if (row_weights_size != rows_size || column_weights_size != columns_size) return RM_BOUNDS;
  if (room_size < width || room_size - width < lines.columns) return RM_BOUNDS;
  if (!are_below({rows, rows_size}, lines.rows) || !are_below({columns, columns_size}, lines.columns)) return RM_BOUNDS;
  float *const line = room, *const sums = room + width;
  for (int64_t y = 0; y < out.rows; y++) {
    memset(room, 0, static_cast<size_t>(width + lines.columns) * sizeof(float));
    for (int64_t i = y; i < rows_size; i += out.rows) {
      const float weight = row_weights[i];
      if (weight == 0) continue;
      const uint8_t *const source = lines[rows[i]];
      for (int64_t at = 0; at < lines.columns; at++) sums[at] += static_cast<float>(source[at]) * weight;
    }
    for (int64_t i = 0; i < columns_size; i += width)
      for (int64_t at = 0; at < width; at++) line[at] += sums[columns[i + at]] * column_weights[i + at];
    out.put(y, line);
  }
  return 0;
}
