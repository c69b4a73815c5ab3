// Batches of the reader: rows of lists padded or packed.
#include "recordmill.h"

namespace rm {

int64_t rm_pad_rows(Span<const ByteSpan> values, IntSpan splits, IntSpan edges, IntSpan lengths, int64_t item_bytes,
                    Span<uint8_t> out) {
  if (values.size != 1 || edges.size != lengths.size + 1 || item_bytes < 1) return BOUNDS;
  const int64_t items = values[0].size / item_bytes;
  int64_t at = 0;
  for (int64_t step = 0; step < lengths.size; step++) {
    const int64_t length = lengths[step];
    if (edges[step] < 0 || edges[step + 1] >= splits.size || length < 0) return BOUNDS;
    for (int64_t row = edges[step]; row < edges[step + 1]; row++) {
      const int64_t size = splits[row + 1] - splits[row];
      if (!ByteSpan(nullptr, items).holds(splits[row], size) || length > (out.size - at) / item_bytes) return BOUNDS;
      copy_short(out.data + at, values[0].data + splits[row] * item_bytes, min(size, length) * item_bytes);
      at += length * item_bytes;
    }
  }
  return at;
}

int64_t rm_pack_rows(IntSpan lengths, IntSpan limits, Span<int64_t> left, Span<int64_t> places, Span<int64_t> ends) {
  const int64_t records = places.size, features = limits.size;
  if (features < 1 || left.size < features || left.size % features || ends.size != records) return BOUNDS;
  if (lengths.size % features || lengths.size / features != records) return BOUNDS;
  const int64_t rows = left.size / features;
  const auto empty_rows = [&] {
    for (int64_t i = 0; i < left.size; i++) left[i] = limits[i % features];
  };
  const auto has_room = [&](int64_t row, int64_t record) {
    bool fits = true;
    for (int64_t i = 0; i < features; i++) fits &= left[row * features + i] >= lengths[i * records + record];
    return fits;
  };
  int64_t steps = 0;
  empty_rows();
  for (int64_t record = 0; record < records; record++) {
    int64_t row = 0;
    while (row < rows && !has_room(row, record)) row++;
    if (row == rows) {
      ends[steps++] = record;
      empty_rows();
      row = 0;
      if (!has_room(row, record)) return BOUNDS;
    }
    for (int64_t i = 0; i < features; i++) left[row * features + i] -= lengths[i * records + record];
    places[record] = steps * rows + row;
  }
  return steps;
}

}  // namespace rm
