// Lines of text: a line ends with a line feed and nothing else; where they begin, which are blank, which are no UTF-8.
#include "masks.h"
#include "utf8.h"

namespace rm {
namespace {

using Bytes = Span<const uint8_t>;

// Calls visit(start, end) for each line; end is where its line feed stands, or the data's end.
template <typename Visit>
void each_line(Bytes data, Visit visit) {
  int64_t start = 0;
  for (int64_t base = 0; base < data.size; base += BLOCK) {
    for (uint64_t ends = byte_mask(data.data, base, data.size, '\n'); ends; ends &= ends - 1) {
      const int64_t end = base + first_bit(ends);
      visit(start, end);
      start = end + 1;
    }
  }
  if (start < data.size) visit(start, data.size);
}

// Whether nothing but ASCII white space stands in [at, stop).
bool is_blank(const uint8_t *data, int64_t at, int64_t stop) {
  while (at < stop && (data[at] == ' ' || (data[at] >= '\t' && data[at] <= '\r'))) at++;
  return at == stop;
}

// Whether all ranges [starts[i], stops[i]) lie in the data.
bool fit(Bytes data, Span<const int64_t> starts, Span<const int64_t> stops) {
  if (starts.size != stops.size) return false;
  for (int64_t i = 0; i < starts.size; i++)
    if (starts[i] < 0 || stops[i] < starts[i] || stops[i] > data.size) return false;
  return true;
}

}  // namespace
}  // namespace rm

using rm::Span;

RM_EXPORT int64_t rm_find_bad_utf8(const uint8_t *data, int64_t data_size) {
  return rm::find_bad_utf8(data, 0, data_size);
}

RM_EXPORT int64_t rm_find_byte(const uint8_t *data, int64_t data_size, int64_t at, int64_t byte) {
  if (at < 0 || at > data_size) return RM_BOUNDS;
  if (at == data_size) return data_size;
  const void *found = memchr(data + at, static_cast<int>(byte), static_cast<size_t>(data_size - at));
  return found ? static_cast<const uint8_t *>(found) - data : data_size;
}

RM_EXPORT int64_t rm_last_line_end(const uint8_t *data, int64_t data_size) {
  int64_t at = data_size;
  while (at > 0 && data[at - 1] != '\n') at--;
  return at;
}

RM_EXPORT int64_t rm_find_long_line(const uint8_t *data, int64_t data_size, int64_t at, int64_t most_bytes) {
  while (at < data_size) {
    const int64_t end = rm_find_byte(data, data_size, at, '\n');
    if (end == RM_BOUNDS || end - at > most_bytes) return end == RM_BOUNDS ? end : at;
    at = end + 1;
  }
  return data_size;
}

RM_EXPORT void rm_count_lines(const uint8_t *data, int64_t data_size, rm_line_counts *counts) {
  *counts = {};
  rm::each_line({data, data_size}, [&](int64_t start, int64_t end) {
    counts->lines++;
    counts->blank += rm::is_blank(data, start, end);
  });
  for (int64_t base = 0; base < data_size; base += rm::BLOCK)
    counts->returns += __builtin_popcountll(rm::byte_mask(data, base, data_size, '\r'));
}

RM_EXPORT int64_t rm_split_lines(const uint8_t *data, int64_t data_size, int64_t *starts, int64_t starts_size,
                                 int64_t *stops, int64_t stops_size) {
  const int64_t room = rm::min(starts_size, stops_size);
  int64_t lines = 0;
  rm::each_line({data, data_size}, [&](int64_t start, int64_t end) {
    if (lines < room) {
      starts[lines] = start;
      stops[lines] = end - (end < data_size && end > start && data[end - 1] == '\r');
    }
    lines++;
  });
  return lines <= room ? lines : RM_BOUNDS;
}

RM_EXPORT int64_t rm_find_bad_lines(const uint8_t *data, int64_t data_size, const int64_t *starts, int64_t starts_size,
                                    const int64_t *stops, int64_t stops_size, int64_t *places, int64_t places_size) {
  if (!rm::fit({data, data_size}, {starts, starts_size}, {stops, stops_size}) || places_size != starts_size)
    return RM_BOUNDS;
  for (int64_t i = 0; i < starts_size; i++) places[i] = rm::find_bad_utf8(data, starts[i], stops[i]);
  return 0;
}

RM_EXPORT int64_t rm_find_blank_lines(const uint8_t *data, int64_t data_size, const int64_t *starts,
                                      int64_t starts_size, const int64_t *stops, int64_t stops_size, uint8_t *blank,
                                      int64_t blank_size) {
  if (!rm::fit({data, data_size}, {starts, starts_size}, {stops, stops_size}) || blank_size != starts_size)
    return RM_BOUNDS;
  for (int64_t i = 0; i < starts_size; i++) blank[i] = rm::is_blank(data, starts[i], stops[i]);
  return 0;
}

RM_EXPORT int64_t rm_join_lines(const uint8_t *data, int64_t data_size, const int64_t *starts, int64_t starts_size,
                                const int64_t *stops, int64_t stops_size, uint8_t *values, int64_t values_size,
                                int64_t *offsets, int64_t offsets_size) {
  if (!rm::fit({data, data_size}, {starts, starts_size}, {stops, stops_size}) || offsets_size != starts_size + 1)
    return RM_BOUNDS;
  int64_t at = offsets[0] = 0;
  for (int64_t i = 0; i < starts_size; i++) {
    const int64_t length = stops[i] - starts[i];
    if (length > values_size - at) return RM_BOUNDS;
    if (length) memcpy(values + at, data + starts[i], static_cast<size_t>(length));
    offsets[i + 1] = at += length;
  }
  return at;
}
