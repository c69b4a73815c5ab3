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

// Whether there are places for so many numbers wanted, all below a size, with a weight each, or for two of them.
bool fit(Span<const uint32_t> places, Span<const float> weights, int64_t wanted, int64_t size, bool are_pairs) {
  uint32_t most = 0;
  for (int64_t i = 0; i < places.size; i++) most = max(most, places[i]);
  if (most >= size || weights.size < wanted || weights.size % wanted) return false;
  return places.size == (are_pairs ? 2 * weights.size : weights.size);
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

int64_t rm_resize(ByteSpan pixels, int64_t stride, int64_t numbers, int64_t antialias, Span<const uint32_t> rows,
                  Span<const float> row_weights, Span<const uint32_t> columns, Span<const float> column_weights,
                  Span<const float> factor, Span<const float> offset, Span<float> room, Span<uint8_t> bytes,
                  Span<float> floats) {
  const Lines lines{pixels, stride, numbers};
  const Output out{bytes, floats, factor, offset};
  if (lines.rows < 1 || out.rows < 1) return BOUNDS;
  if (room.size < 3 * out.width || room.size - 3 * out.width < lines.columns) return BOUNDS;
  if (!fit(rows, row_weights, out.rows, lines.rows, !antialias)) return BOUNDS;
  if (!fit(columns, column_weights, out.width, lines.columns, !antialias)) return BOUNDS;
  const int64_t width = out.width;
  float *const line = room.data, *const source = line + 3 * width;
  struct Gathered {  // a source line at the numbers wanted
    float *values;
    int64_t row;
  } top{line + width, -1}, bottom{line + 2 * width, -1};
  const auto gather = [&](Gathered &to, int64_t row) {
    if (to.row == row) return;
    to.row = row;
    for (int64_t i = 0; i < lines.columns; i++) source[i] = lines[row][i];
    for (int64_t i = 0; i < width; i++) {
      const float value = source[columns[i]];
      to.values[i] = value + (source[columns[width + i]] - value) * column_weights[i];
    }
  };
  for (int64_t y = 0; y < out.rows; y++) {
    if (antialias) {
      memset(source, 0, static_cast<size_t>(lines.columns) * sizeof(float));
      for (int64_t i = y; i < rows.size; i += out.rows) {
        const float weight = row_weights[i];
        if (weight == 0) continue;
        const uint8_t *const pixel = lines[rows[i]];
        for (int64_t at = 0; at < lines.columns; at++) source[at] += static_cast<float>(pixel[at]) * weight;
      }
      memset(line, 0, static_cast<size_t>(width) * sizeof(float));
      for (int64_t i = 0; i < columns.size; i += width)
        for (int64_t at = 0; at < width; at++) line[at] += source[columns[i + at]] * column_weights[i + at];
    } else {
      if (rows[y] == bottom.row) {
        const Gathered before = top;
        top = bottom, bottom = before;
      }
      gather(top, rows[y]);
      gather(bottom, rows[out.rows + y]);
      for (int64_t i = 0; i < width; i++) line[i] = top.values[i] + (bottom.values[i] - top.values[i]) * row_weights[y];
    }
    out.put(y, line);
  }
  return 0;
}

}  // namespace rm
