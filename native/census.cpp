// A census of records without a schema: the names of their features, and the types, lengths and contents of values.
#include "feature_parser.h"

namespace rm {
namespace {

constexpr int64_t NO_ROOM = -1;
constexpr int64_t NameCounts::*LISTS[] = {&NameCounts::bytes_lists, &NameCounts::float_lists, &NameCounts::int64_lists};
constexpr int64_t NameCounts::*FIRST[] = {&NameCounts::first_bytes_list, &NameCounts::first_float_list,
                                         &NameCounts::first_int64_list};

// Returns whether bytes contain a control character that does not occur in text. These are all characters below the space
// except for tab, line ends and escape.
bool has_control(ByteRange value) {
  for (const uint8_t *next = value.begin; next < value.end; next++) {
    const uint64_t word = value.end - next >= 8 ? load<uint64_t>(next) : 0;
    // The highest bit of a byte survives if the byte is below the space: eight bytes are passed at once if none is.
    if (((word - 0x2020202020202020) & ~word & CONTINUATION_BITS) == 0) next += 7;
    else if (*next < 0x20 && (*next < '\t' || *next > '\r') && *next != 0x1B) return true;
  }
  return false;
}

// Returns whether a key looks like the name of a feature. Messages of other types parse as Example by chance. Their "keys"
// are parts of the encoding, which begin with a line feed (the tag of field 1) or hold control characters.
bool is_name(ByteRange key) { return !has_control(key) && (key.size() == 0 || *key.begin != '\n'); }

int64_t count_texts(ByteRange list, NameCounts &counts) {
  const int64_t before = counts.bytes_values;
  each_field(list, [&](ByteRange text) {
    counts.min_bytes = min(counts.min_bytes, text.size());
    counts.max_bytes = max(counts.max_bytes, text.size());
    counts.texts += find_bad_utf8(text.begin, 0, text.size()) < 0 && !has_control(text);
    return ++counts.bytes_values > 0;
  });
  return counts.bytes_values - before;
}

int64_t count_ints(ByteRange packed, const uint8_t *limit, NameCounts &counts) {
  int64_t count = 0;
  for (const uint8_t *next = packed.begin; next < packed.end; count++) {
    const Varint varint = read_varint(next, packed.end, limit);
    const int64_t value = static_cast<int64_t>(varint.value);
    counts.min_int = min(counts.min_int, value);
    counts.max_int = max(counts.max_int, value);
    counts.sum_int += value;
    next = varint.after;
  }
  return count;
}

// Keeps an extreme value and the first record that has it. Records may come in any order.
void update_extreme(bool is_new_extreme, int64_t value, int64_t record, int64_t &extreme, int64_t &first) {
  if (value == extreme) first = min(first, record);
  if (is_new_extreme) extreme = value, first = record;
}

// Counts a Feature in the plain form. limit: the end of readable memory.
void count_feature(ByteRange feature, int64_t record, const uint8_t *limit, NameCounts &counts) {
  if (feature.size() == 0) return;
  const uint8_t tag = *feature.begin;
  const ByteRange values = plain_values(read_content(feature.begin + 1, feature.end), tag);
  const int64_t kind = (tag >> 3) - 1, count = tag == BYTES_TAG   ? count_texts(values, counts)
                                               : tag == FLOAT_TAG ? values.size() / 4
                                                                  : count_ints(values, limit, counts);
  counts.*LISTS[kind] += 1;
  counts.*FIRST[kind] = min(counts.*FIRST[kind], record);
  counts.values += count;
  update_extreme(count < counts.min_values, count, record, counts.min_values, counts.first_min_values);
  update_extreme(count > counts.max_values, count, record, counts.max_values, counts.first_max_values);
}

}  // namespace

int64_t rm_count_names(ByteSpan data, IntSpan starts, IntSpan lengths, int64_t first_record, Span<int64_t> table,
                       Span<NameCounts> counts, Span<uint8_t> status, Span<int64_t> maps) {
  Names names(table);
  if (lengths.size != starts.size || status.size != starts.size || maps.size != starts.size) return BOUNDS;
  if (!names.fits() || counts.size != names.slots()) return BOUNDS;
  constexpr uint8_t GOOD = static_cast<uint8_t>(RecordStatus::GOOD), UNREAD = static_cast<uint8_t>(RecordStatus::UNREAD);
  // No status means "no room for a name". Inside this function UNREAD has this meaning.
  constexpr RecordStatus NO_ROOM_STATUS = RecordStatus::UNREAD;
  int64_t bad = 0;
  for (int64_t row = 0; row < starts.size; row++) {
    const ByteRange record = range_of(data, starts[row], lengths[row]);
    if (status[row] == UNREAD && !record.is_valid()) return BOUNDS;
    // Records are walked twice: nothing may be counted of a record that turns out to be unusual at its end.
    const auto walk = [&](bool is_checked) {
      return each_map(record, 2, [&](auto part, auto map) {
        maps[row] |= part;
        return each_entry(map, part, names, data.end(), is_name, [&](int64_t slot, ByteRange value) {
          if (slot == 0) return NO_ROOM_STATUS;
          NameCounts &name_counts = counts[slot];
          const auto count = [&](ByteRange feature) {
            count_feature(feature, first_record + row, data.end(), name_counts);
            return true;
          };
          if (is_checked) {
            name_counts.records++;
            part == 1 ? count(value) : each_field(value, count);
            return RecordStatus::GOOD;
          }
          if (name_counts.last_row == row) return RecordStatus::UNUSUAL;  // a key that comes twice
          name_counts.last_row = row;
          const bool is_plain = (part == 1 ? is_plain_feature : are_plain_steps)(value, true);
          return is_plain ? RecordStatus::GOOD : RecordStatus::UNUSUAL;
        });
      });
    };
    if (status[row] == UNREAD) {
      maps[row] = 0;
      const RecordStatus result = walk(false);
      if (result == NO_ROOM_STATUS) return NO_ROOM;
      if (result == RecordStatus::GOOD) walk(true);
      status[row] = static_cast<uint8_t>(result);
    }
    bad += status[row] != GOOD;
  }
  return bad;
}

}  // namespace rm
