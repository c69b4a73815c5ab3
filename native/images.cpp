// The structure of JPEG files (ITU-T T.81), and resizing with the results of TensorFlow's kernels.
#include "recordmill.h"

namespace rm {
namespace {

RM_INLINE int64_t load_big16(const uint8_t *at) { return at[0] << 8 | at[1]; }

// Returns the offset of the next marker, or of the last byte. A marker is FF and a byte that is neither 00 (FF 00 is a byte FF
// of coded data) nor FF (fill bytes).
int64_t next_marker(const uint8_t *data, int64_t position, int64_t size) {
  for (; size - position > 1; position++) {
    const void *const candidate = memchr(data + position, 0xFF, static_cast<size_t>(size - 1 - position));
    if (candidate == nullptr) break;
    position = static_cast<const uint8_t *>(candidate) - data;
    if (data[position + 1] != 0 && data[position + 1] != 0xFF) return position;
  }
  return max(position, size - 1);
}

// Walks the segments of an image up to its end.
JpegFacts walk_jpeg(ByteSpan image) {
  const uint8_t *const data = image.data;
  const int64_t size = image.size;
  JpegFacts facts = {};
  const auto stop = [&](JpegCode code) { return facts.code = code, facts; };
  if (size < 3 || data[0] != 0xFF || data[1] != 0xD8 || data[2] != 0xFF) return stop(JpegCode::NOT_A_JPEG);
  bool has_frame = false;
  for (int64_t at = 2;;) {
    facts.position = at = next_marker(data, at, size);  // stray bytes between segments are skipped as libjpeg does
    if (size - at < 2) return stop(JpegCode::NO_END);
    const uint8_t marker = data[at + 1];
    at += 2;
    if ((marker >= 0xD0 && marker <= 0xD7) || marker == 0x01) continue;  // RSTn, TEM: markers without a segment
    if (marker == 0xD9) return stop(!has_frame ? JpegCode::NO_FRAME : !facts.scans ? JpegCode::NO_SCAN : JpegCode::GOOD);
    if (marker == 0xD8) return stop(JpegCode::REPEATED);
    if (size - at < 2) return stop(JpegCode::CUT_OFF);
    const int64_t length = load_big16(data + at);
    if (length < 2) return stop(JpegCode::BAD_LENGTH);
    if (length > size - at) return stop(JpegCode::CUT_OFF);
    if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
      if (has_frame) return stop(JpegCode::REPEATED);
      has_frame = true;
      if (length < 8) return stop(JpegCode::BAD_FRAME);
      facts.marker = marker, facts.bits = data[at + 2], facts.components = data[at + 7];
      facts.height = load_big16(data + at + 3), facts.width = load_big16(data + at + 5);
      const int64_t components = facts.components;
      if (!facts.height || !facts.width || !components || length != 8 + 3 * components) return stop(JpegCode::BAD_FRAME);
    } else if (marker == 0xDA) {
      if (!has_frame) return stop(JpegCode::NO_FRAME);
      facts.scans++;
    }
    at += length;
  }
}

// Source lines with the number of them, which is 0 if they do not fit their array.
template <typename Number>
struct Lines {
  Span<const Number> pixels;
  int64_t stride, width, count;

  Lines(Span<const Number> pixels, const PixelLines &lines)
      : pixels(pixels), stride(lines.stride), width(lines.width),
        count(width < 1 || stride < width || pixels.size < width ? 0 : (pixels.size - width) / stride + 1) {}

  RM_INLINE const Number *operator[](int64_t line) const { return pixels.data + line * stride; }
};

// Output lines with the number of them, which is 0 if the arrays do not fit together.
struct OutputLines : ResizeOutput {
  int64_t width, count;

  explicit OutputLines(const ResizeOutput &output) : ResizeOutput(output), width(factor.size) {
    const int64_t size = bytes ? bytes.size : floats.size;
    count = width > 0 && offset.size == width && size % width == 0 ? size / width : 0;
  }

  void put(int64_t line, const float *values) const {
    if (bytes) {
      // Adding and subtracting this number leaves no fraction of a number below 2^22: it rounds half to even.
      constexpr float ROUNDS = 3 << 22;
      uint8_t *const out = bytes.data + line * width;
      for (int64_t i = 0; i < width; i++) out[i] = static_cast<uint8_t>(static_cast<int>(values[i] + ROUNDS - ROUNDS));
    } else {
      float *const out = floats.data + line * width;
      for (int64_t i = 0; i < width; i++) out[i] = values[i] * factor[i] - offset[i];
    }
  }
};

// Returns whether the taps are of `outputs` outputs, and all their sources are below `sources`.
bool fit(const ResizeTaps &taps, int64_t outputs, int64_t sources, bool antialias) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < taps.sources.size; i++) largest = max(largest, taps.sources[i]);
  if (largest >= sources || taps.weights.size < outputs || taps.weights.size % outputs) return false;
  return taps.sources.size == (antialias ? taps.weights.size : 2 * taps.weights.size);
}

template <typename Number>
int64_t resize_lines(const Lines<Number> &lines, bool antialias, const ResizeTaps &rows, const ResizeTaps &columns,
                     const OutputLines &out, Span<float> scratch) {
  const int64_t width = out.width;
  if (lines.count < 1 || out.count < 1) return BOUNDS;
  if (scratch.size < 3 * width || scratch.size - 3 * width < lines.width) return BOUNDS;
  if (!fit(rows, out.count, lines.count, antialias) || !fit(columns, width, lines.width, antialias)) return BOUNDS;
  float *const line = scratch.data, *const source_line = line + 3 * width;
  // Without antialiasing: the two source lines around an output line, resized horizontally. An output line mostly lies
  // between the same lines as the one before it, or one further, so each source line is resized once.
  struct ResizedLine {
    float *values;
    int64_t number;
  } top{line + width, -1}, bottom{line + 2 * width, -1};
  const auto resize_line = [&](ResizedLine &to, int64_t number) {
    if (to.number == number) return;
    to.number = number;
    for (int64_t i = 0; i < lines.width; i++) source_line[i] = static_cast<float>(lines[number][i]);
    for (int64_t i = 0; i < width; i++) {
      const float value = source_line[columns.sources[i]];
      to.values[i] = value + (source_line[columns.sources[width + i]] - value) * columns.weights[i];
    }
  };
  for (int64_t y = 0; y < out.count; y++) {
    if (antialias) {
      // Vertically first: the sum of source lines is computed in vector code.
      memset(source_line, 0, static_cast<size_t>(lines.width) * sizeof(float));
      for (int64_t tap = y; tap < rows.sources.size; tap += out.count) {
        const float weight = rows.weights[tap];
        if (weight == 0) continue;
        const Number *const pixels = lines[rows.sources[tap]];
        for (int64_t i = 0; i < lines.width; i++) source_line[i] += static_cast<float>(pixels[i]) * weight;
      }
      memset(line, 0, static_cast<size_t>(width) * sizeof(float));
      for (int64_t tap = 0; tap < columns.sources.size; tap += width)
        for (int64_t i = 0; i < width; i++)
          line[i] += source_line[columns.sources[tap + i]] * columns.weights[tap + i];
    } else {
      if (rows.sources[y] == bottom.number) {
        const ResizedLine old_top = top;
        top = bottom, bottom = old_top;
      }
      resize_line(top, rows.sources[y]);
      resize_line(bottom, rows.sources[out.count + y]);
      for (int64_t i = 0; i < width; i++)
        line[i] = top.values[i] + (bottom.values[i] - top.values[i]) * rows.weights[y];
    }
    out.put(y, line);
  }
  return 0;
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

int64_t rm_resize(const PixelLines &source, int64_t antialias, const ResizeTaps &rows, const ResizeTaps &columns,
                  const ResizeOutput &output, Span<float> scratch) {
  const OutputLines out(output);
  if (source.deep_pixels)
    return resize_lines(Lines<uint16_t>(source.deep_pixels, source), antialias, rows, columns, out, scratch);
  return resize_lines(Lines<uint8_t>(source.pixels, source), antialias, rows, columns, out, scratch);
}

}  // namespace rm
