// Lines of text: a line ends with a line feed and nothing else; where they begin, which are blank, which are no UTF-8.
#include "masks.h"

namespace rm {
namespace {

// Calls visit(start, end) for each line; end is where its line feed stands, or the data's end.
template <typename Visit>
void each_line(ByteSpan data, Visit visit) {
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

}  // namespace

int64_t rm_find_bad_utf8(ByteSpan data) { return find_bad_utf8(data.data, 0, data.size); }

void rm_count_lines(ByteSpan data, LineCounts &counts) {
  counts = {};
  each_line(data, [&](int64_t start, int64_t end) {
    counts.lines++;
    counts.blank += is_blank(data.data, start, end);
  });
}

int64_t rm_split_lines(ByteSpan data, Span<int64_t> starts, Span<int64_t> stops) {
  const int64_t room = min(starts.size, stops.size);
  int64_t lines = 0;
  each_line(data, [&](int64_t start, int64_t end) {
    if (lines < room) {
      starts[lines] = start;
      stops[lines] = end - (end < data.size && end > start && data[end - 1] == '\r');
    }
    lines++;
  });
  return lines <= room ? lines : BOUNDS;
}

int64_t rm_find_bad_lines(ByteSpan data, IntSpan starts, IntSpan stops, Span<int64_t> places) {
  if (stops.size != starts.size || places.size != starts.size) return BOUNDS;
  const bool is_good = is_ascii(data.data, data.size);
  for (int64_t i = 0; i < starts.size; i++) {
    if (!data.holds(starts[i], stops[i] - starts[i])) return BOUNDS;
    places[i] = is_good ? -1 : find_bad_utf8(data.data, starts[i], stops[i]);
  }
  return 0;
}

}  // namespace rm
