// Batches of the reader: rows of lists packed.
#include "recordmill.h"

namespace rm {

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
