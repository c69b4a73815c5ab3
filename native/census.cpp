// Records of which no schema is known: names as they turn up, and of each the kinds, lengths and contents of values.
#include "features.h"

namespace rm {
namespace {

constexpr int64_t NO_ROOM = -1;
constexpr int64_t NameCounts::*LISTS[] = {&NameCounts::bytes_lists, &NameCounts::float_lists, &NameCounts::int64_lists};
constexpr int64_t NameCounts::*FIRST[] = {&NameCounts::first_bytes, &NameCounts::first_float, &NameCounts::first_int64};

// Whether there is a control character that text lacks: all but tab, line feeds, carriage return and escape.
bool has_control(ByteRange value) {
  for (const uint8_t *at = value.at; at < value.end; at++) {
    const uint64_t word = value.end - at >= 8 ? load<uint64_t>(at) : 0;
    if (((word - 0x2020202020202020) & ~word & GO_ON) == 0) at += 7;  // eight bytes from the space on
    else if (*at < 0x20 && (*at < '\t' || *at > '\r') && *at != 0x1B) return true;
  }
  return false;
}

// Messages of other types parse as Example by chance; the keys then hold parts of the encoding, which begin with line
// feeds and small numbers.
bool is_name(ByteRange key) { return !has_control(key) && (key.size() == 0 || *key.at != '\n'); }

int64_t count_texts(ByteRange list, NameCounts &counts) {
  const int64_t before = counts.bytes_values;
  each_field(list, [&](ByteRange text) {
    counts.least_bytes = min(counts.least_bytes, text.size());
    counts.most_bytes = max(counts.most_bytes, text.size());
    counts.texts += find_bad_utf8(text.at, 0, text.size()) < 0 && !has_control(text);
    return ++counts.bytes_values > 0;
  });
  return counts.bytes_values - before;
}

int64_t count_ints(ByteRange run, const uint8_t *limit, NameCounts &counts) {
  int64_t count = 0;
  for (const uint8_t *at = run.at; at < run.end; count++) {
    const Varint next = read_varint(at, run.end, limit);
    const int64_t value = static_cast<int64_t>(next.value);
    counts.least_int = min(counts.least_int, value);
    counts.most_int = max(counts.most_int, value);
    counts.sum_int += value;
    at = next.after;
  }
  return count;
}

// A value's extreme, and the first record that has it.
void keep_extreme(bool is_better, int64_t value, int64_t record, int64_t &extreme, int64_t &first) {
  if (value == extreme) first = min(first, record);
  if (is_better) extreme = value, first = record;
}

// Counts a plain Feature. limit: of readable memory.
void count_feature(ByteRange feature, int64_t record, const uint8_t *limit, NameCounts &counts) {
  if (feature.size() == 0) return;
  const uint8_t tag = *feature.at;
  const ByteRange values = plain_values(read_content(feature.at + 1, feature.end), tag);
  const int64_t kind = (tag >> 3) - 1, count = tag == BYTES_TAG   ? count_texts(values, counts)
                                               : tag == FLOAT_TAG ? values.size() / 4
                                                                  : count_ints(values, limit, counts);
  counts.*LISTS[kind] += 1;
  counts.*FIRST[kind] = min(counts.*FIRST[kind], record);
  counts.values += count;
  keep_extreme(count < counts.least_values, count, record, counts.least_values, counts.first_least);
  keep_extreme(count > counts.most_values, count, record, counts.most_values, counts.first_most);
}

}  // namespace

int64_t rm_count_names(ByteSpan data, IntSpan starts, IntSpan lengths, int64_t first_record, Span<int64_t> table,
                       Span<NameCounts> counts, Span<uint8_t> status, Span<int64_t> parts) {
  Names names(table);
  if (lengths.size != starts.size || status.size != starts.size || parts.size != starts.size) return BOUNDS;
  if (!names.fits() || counts.size != names.slots()) return BOUNDS;
  int64_t left = 0;
  for (int64_t row = 0; row < starts.size; row++) {
    const ByteRange record = range_of(data, starts[row], lengths[row]);
    if (status[row] == UNREAD && !record.is_there()) return BOUNDS;
    const auto walk = [&](bool is_good) {  // a record that is good is counted
      return each_map(record, 2, [&](auto part, auto map) {
        parts[row] |= part;
        return each_entry(map, part, names, data.end(), is_name, [&](int64_t slot, ByteRange value) -> int64_t {
          if (slot == 0) return NO_ROOM;
          NameCounts &found = counts[slot];
          const auto count = [&](ByteRange one) { return count_feature(one, first_record + row, data.end(), found), true; };
          if (is_good) {
            found.records++;
            part == 1 ? count(value) : each_field(value, count);
            return 0;
          }
          if (found.last_row == row) return UNUSUAL;
          found.last_row = row;
          return (part == 1 ? is_plain_feature : are_plain_steps)(value, true) ? 0 : UNUSUAL;
        });
      });
    };
    if (status[row] == UNREAD) {
      parts[row] = 0;
      const int64_t reason = walk(false);
      if (reason == NO_ROOM) return NO_ROOM;
      if (reason == 0) walk(true);
      status[row] = static_cast<uint8_t>(reason);
    }
    left += status[row] != 0;
  }
  return left;
}

}  // namespace rm
