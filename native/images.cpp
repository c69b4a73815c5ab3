// Images: the segments of JPEG files, and pixels resized as TensorFlow's kernels do it.
#include "recordmill.h"

namespace rm {
namespace {

RM_INLINE int64_t load_big16(const uint8_t *at) { return at[0] << 8 | at[1]; }

// Where the next marker stands, or the last byte: FF and neither 00 (a stuffed FF of coded data) nor FF (fill).
int64_t next_marker(const uint8_t *data, int64_t at, int64_t size) {
  for (; size - at > 1; at++) {
    const void *const found = memchr(data + at, 0xFF, static_cast<size_t>(size - 1 - at));
    if (found == nullptr) break;
    at = static_cast<const uint8_t *>(found) - data;
    if (data[at + 1] != 0 && data[at + 1] != 0xFF) return at;
  }
  return max(at, size - 1);
}

// Walks the segments of an image (ITU-T T.81) up to its end.
JpegFacts walk_jpeg(ByteSpan image) {
  const uint8_t *const data = image.data;
  const int64_t size = image.size;
  JpegFacts facts = {};
  const auto stop = [&](int64_t code) { return facts.code = code, facts; };
  if (size < 3 || data[0] != 0xFF || data[1] != 0xD8 || data[2] != 0xFF) return stop(JPEG_OTHER);
  bool has_frame = false;
  for (int64_t at = 2;;) {
    facts.place = at = next_marker(data, at, size);  // stray bytes between segments are skipped as libjpeg does
    if (size - at < 2) return stop(JPEG_NO_END);
    const uint8_t marker = data[at + 1];
    at += 2;
    if ((marker >= 0xD0 && marker <= 0xD7) || marker == 0x01) continue;  // RSTn, TEM: markers without a segment
    if (marker == 0xD9) return stop(!has_frame ? JPEG_NO_FRAME : !facts.scans ? JPEG_NO_SCAN : JPEG_GOOD);
    if (marker == 0xD8) return stop(JPEG_TWICE);
    if (size - at < 2) return stop(JPEG_CUT);
    const int64_t length = load_big16(data + at);
    if (length < 2) return stop(JPEG_LENGTH);
    if (length > size - at) return stop(JPEG_CUT);
    if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
      if (has_frame) return stop(JPEG_TWICE);
      has_frame = true;
      if (length < 8) return stop(JPEG_FRAME);
      facts.marker = marker, facts.bits = data[at + 2], facts.components = data[at + 7];
      facts.height = load_big16(data + at + 3), facts.width = load_big16(data + at + 5);
      const int64_t components = facts.components;
      if (!facts.height || !facts.width || !components || length != 8 + 3 * components) return stop(JPEG_FRAME);
    } else if (marker == 0xDA) {
      if (!has_frame) return stop(JPEG_NO_FRAME);
      facts.scans++;
    }
    at += length;
  }
}

// Lines of numbers, a stride apart; no rows where there are no such lines.
struct Lines {
  ByteSpan pixels;
  int64_t stride, columns;
  int64_t rows = columns < 1 || stride < columns || pixels.size < columns ? 0 : (pixels.size - columns) / stride + 1;

  RM_INLINE const uint8_t *operator[](int64_t row) const { return pixels.data + row * stride; }
};

// Where lines of numbers go: rounded to bytes, or as factor * number - offset; no rows where the arrays do not fit.
struct Output {
  Span<uint8_t> bytes;
  Span<float> floats;
  Span<const float> factor, offset;
  int64_t width = factor.size, size = bytes ? bytes.size : floats.size;
  int64_t rows = width > 0 && offset.size == width && size % width == 0 ? size / width : 0;

  void put(int64_t row, const float *line) const {
    if (bytes) {
      constexpr float ROUNDS = 3 << 22;  // added to a number below 2^22, and taken off, it rounds half to even
      uint8_t *const out = bytes.data + row * width;
      for (int64_t i = 0; i < width; i++) out[i] = static_cast<uint8_t>(static_cast<int>(line[i] + ROUNDS - ROUNDS));
    } else {
      float *const out = floats.data + row * width;
      for (int64_t i = 0; i < width; i++) out[i] = line[i] * factor[i] - offset[i];
    }
  }
};

// Whether there are so many places, with a weight each, and all of them are below a size.
bool are_below(Span<const uint32_t> places, int64_t count, Span<const float> weights, int64_t size) {
  uint32_t most = 0;
  for (int64_t i = 0; i < places.size; i++) most = max(most, places[i]);
  return most < size && places.size == count && weights.size == count;
}

}  // namespace

int64_t rm_walk_jpegs(ByteSpan data, IntSpan ends, Span<JpegFacts> facts) {
  if (facts.size != ends.size) return BOUNDS;
  for (int64_t i = 0, start = 0; i < ends.size; start = ends[i++]) {
    if (!data.holds(start, ends[i] - start)) return BOUNDS;
    facts[i] = walk_jpeg({data.data + start, ends[i] - start});
  }
  return 0;
}

int64_t rm_resize_bilinear(ByteSpan pixels, int64_t stride, int64_t numbers, Span<const uint32_t> above,
                           Span<const uint32_t> below, Span<const float> down, Span<const uint32_t> lower,
                           Span<const uint32_t> upper, Span<const float> along, Span<const float> factor,
                           Span<const float> offset, Span<float> room, Span<uint8_t> bytes, Span<float> floats) {
  const Lines lines{pixels, stride, numbers};
  const Output out{bytes, floats, factor, offset};
  const int64_t width = out.width;
  if (lines.rows < 1 || room.size < 3 * width || room.size - 3 * width < lines.columns) return BOUNDS;
  if (!are_below(above, out.rows, down, lines.rows) || !are_below(below, out.rows, down, lines.rows)) return BOUNDS;
  if (!are_below(lower, width, along, lines.columns) || !are_below(upper, width, along, lines.columns)) return BOUNDS;
  struct Gathered {  // a source line at the columns wanted
    float *values;
    int64_t row;
  } top{room.data, -1}, bottom{room.data + width, -1};
  float *const line = room.data + 2 * width, *const source = room.data + 3 * width;
  const auto gather = [&](Gathered &to, int64_t row) {
    if (to.row == row) return;
    to.row = row;
    for (int64_t i = 0; i < lines.columns; i++) source[i] = lines[row][i];
    for (int64_t i = 0; i < width; i++) {
      const float value = source[lower[i]];
      to.values[i] = value + (source[upper[i]] - value) * along[i];
    }
  };
  for (int64_t y = 0; y < out.rows; y++) {
    if (above[y] == bottom.row) {
      const Gathered before = top;
      top = bottom, bottom = before;
    }
    gather(top, above[y]);
    gather(bottom, below[y]);
    for (int64_t i = 0; i < width; i++) line[i] = top.values[i] + (bottom.values[i] - top.values[i]) * down[y];
    out.put(y, line);
  }
  return 0;
}

int64_t rm_resize_antialiased(ByteSpan pixels, int64_t stride, int64_t numbers, Span<const uint32_t> rows,
                              Span<const float> row_weights, Span<const uint32_t> columns,
                              Span<const float> column_weights, Span<const float> factor, Span<const float> offset,
                              Span<float> room, Span<uint8_t> bytes, Span<float> floats) {
  const Lines lines{pixels, stride, numbers};
  const Output out{bytes, floats, factor, offset};
  const int64_t width = out.width;
  if (lines.rows < 1 || out.rows < 1 || rows.size % out.rows || columns.size % width) return BOUNDS;
  if (room.size < width || room.size - width < lines.columns) return BOUNDS;
  if (!are_below(rows, rows.size, row_weights, lines.rows)) return BOUNDS;
  if (!are_below(columns, columns.size, column_weights, lines.columns)) return BOUNDS;
  float *const line = room.data, *const sums = room.data + width;
  for (int64_t y = 0; y < out.rows; y++) {
    memset(room.data, 0, static_cast<size_t>(width + lines.columns) * sizeof(float));
    for (int64_t i = y; i < rows.size; i += out.rows) {
      const float weight = row_weights[i];
      if (weight == 0) continue;
      const uint8_t *const source = lines[rows[i]];
      for (int64_t at = 0; at < lines.columns; at++) sums[at] += static_cast<float>(source[at]) * weight;
    }
    for (int64_t i = 0; i < columns.size; i += width)
      for (int64_t at = 0; at < width; at++) line[at] += sums[columns[i + at]] * column_weights[i + at];
    out.put(y, line);
  }
  return 0;
}

}  // namespace rm
