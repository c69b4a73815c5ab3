// Records of which no schema is known: names as they turn up, and of each the kinds, lengths and contents of values.
#include "features.h"

namespace rm {
namespace {

constexpr int64_t NameCounts::*LISTS[] = {&NameCounts::bytes_lists, &NameCounts::float_lists, &NameCounts::int64_lists};
constexpr int64_t NameCounts::*FIRST[] = {&NameCounts::first_bytes, &NameCounts::first_float, &NameCounts::first_int64};
constexpr int64_t NameCounts::*IMAGES[] = {&NameCounts::jpegs, &NameCounts::pngs,  &NameCounts::gifs,
                                           &NameCounts::bmps,  &NameCounts::webps, &NameCounts::tiffs};
constexpr int64_t NO_IMAGE = -1, NO_ROOM = -1;

// Which of the formats above the bytes begin.
int64_t image_format(ByteRange value) {
  if (value.size() < 12) return NO_IMAGE;
  const uint8_t *const at = value.at;
  const uint32_t head = load<uint32_t>(at);
  if ((head & 0xFFFFFF) == 0xFFD8FF) return 0;
  if (load<uint64_t>(at) == 0x0A1A0A0D474E5089) return 1;
  if (head == 0x38464947) return 2;
  if ((head & 0xFFFF) == 0x4D42 && load<uint32_t>(at + 6) == 0) return 3;  // reserved; not 0 in text that begins with BM
  if (head == 0x46464952 && load<uint32_t>(at + 8) == 0x50424557) return 4;
  return head == 0x002A4949 || head == 0x2A004D4D ? 5 : NO_IMAGE;
}

// Whether there is a control character that text lacks: all but tab, line feeds, carriage return and escape.
bool has_control(ByteRange value) {
  constexpr uint64_t SPACES = 0x2020202020202020u;
  for (const uint8_t *at = value.at; at < value.end; at++) {
    if (value.end - at >= 8) {
      const uint64_t word = load<uint64_t>(at);
      if (((word - SPACES) & ~word & GO_ON) == 0) {
        at += 7;
        continue;
      }
    }
    if (*at < 0x20 && (*at < 0x09 || *at > 0x0D) && *at != 0x1B) return true;
  }
  return false;
}

void count_texts(ByteRange list, NameCounts &counts, int64_t &count) {
  each_field(list, [&](ByteRange text) {
    counts.least_bytes = min(counts.least_bytes, text.size());
    counts.most_bytes = max(counts.most_bytes, text.size());
    const int64_t image = image_format(text);
    if (image != NO_IMAGE) counts.*IMAGES[image] += 1;
    else counts.texts += find_bad_utf8(text.at, 0, text.size()) < 0 && !has_control(text);
    count++;
    return true;
  });
  counts.bytes_values += count;
}

// A value's extreme, and the first record that has it.
void keep_extreme(bool is_better, int64_t value, int64_t record, int64_t &extreme, int64_t &first) {
  if (value == extreme) first = min(first, record);
  if (is_better) extreme = value, first = record;
}

// Looks at one record, and counts what is in it.
struct Witness {
  Names &names;
  NameCounts *counts;
  const uint8_t *limit;  // of readable memory
  int64_t row, record;

  // Counts a plain Feature.
  void count_feature(ByteRange feature, NameCounts &found) const {
    if (feature.size() == 0) {
      found.kindless++;
      return;
    }
    const uint8_t tag = *feature.at;
    const ByteRange values = plain_values(read_content(feature.at + 1, feature.end), tag);
    int64_t count = 0;
    if (tag == BYTES_TAG) {
      count_texts(values, found, count);
    } else if (tag == FLOAT_TAG) {
      count = values.size() / 4;
    } else {
      for (const uint8_t *at = values.at; at < values.end; count++) {
        const Varint next = read_varint(at, values.end, limit);
        const int64_t value = static_cast<int64_t>(next.value);
        found.least_int = min(found.least_int, value);
        found.most_int = max(found.most_int, value);
        found.sum_int += value;
        at = next.after;
      }
    }
    const int64_t kind = (tag >> 3) - 1;
    found.*LISTS[kind] += 1;
    found.*FIRST[kind] = min(found.*FIRST[kind], record);
    found.empty += count == 0;
    found.values += count;
    keep_extreme(count < found.least_values, count, record, found.least_values, found.first_least);
    keep_extreme(count > found.most_values, count, record, found.most_values, found.first_most);
  }

  void count_steps(ByteRange list, NameCounts &found) const {
    int64_t steps = 0;
    each_field(list, [&](ByteRange step) {
      count_feature(step, found);
      return ++steps > 0;
    });
    found.least_steps = min(found.least_steps, steps);
    found.most_steps = max(found.most_steps, steps);
  }

  // Looks at a Features (part 1) or FeatureLists (part 2), or counts one that was looked at; gives 0, UNUSUAL or
  // NO_ROOM. Messages of other types parse as Example by chance; the keys then hold parts of the encoding, which begin
  // with line feeds and small numbers.
  template <bool IS_COUNTED>
  int64_t walk_map(ByteRange map, int64_t part) const {
    const auto is_name = [](ByteRange key) { return !has_control(key) && (key.size() == 0 || *key.at != '\n'); };
    return each_entry(map, part, names, limit, is_name, [&](int64_t slot, ByteRange value) -> int64_t {
      if (slot == 0) return NO_ROOM;
      NameCounts &found = counts[slot];
      if (IS_COUNTED) {
        found.records++;
        if (part == 1) count_feature(value, found);
        else count_steps(value, found);
        return 0;
      }
      if (found.last_row == row) return UNUSUAL;
      found.last_row = row;
      return (part == 1 ? is_plain_feature : are_plain_steps)(value, true) ? 0 : UNUSUAL;
    });
  }

  template <bool IS_COUNTED>
  int64_t walk(ByteRange message, int64_t &parts) const {
    parts = 0;
    return each_map(message, 2, [&](auto part, auto map) { return parts |= part, walk_map<IS_COUNTED>(map, part); });
  }
};

}  // namespace

int64_t rm_count_names(ByteSpan data, IntSpan starts, IntSpan lengths, int64_t first_record, Span<int64_t> table,
                       Span<NameCounts> counts, Span<uint8_t> status, Span<int64_t> parts) {
  Names names(table);
  if (lengths.size != starts.size || status.size != starts.size || parts.size != starts.size) return BOUNDS;
  if (!names.fits() || counts.size != names.slots()) return BOUNDS;
  int64_t left = 0;
  for (int64_t row = 0; row < starts.size; row++) {
    if (status[row] == UNREAD) {
      const ByteRange record = range_of(data, starts[row], lengths[row]);
      if (!record.is_there()) return BOUNDS;
      const Witness witness{names, counts.data, data.end(), row, first_record + row};
      const int64_t reason = witness.walk<false>(record, parts[row]);
      if (reason == NO_ROOM) return NO_ROOM;
      if (reason == 0) witness.walk<true>(record, parts[row]);
      status[row] = static_cast<uint8_t>(reason);
    }
    left += status[row] != 0;
  }
  return left;
}

int64_t rm_are_texts(ByteSpan data, IntSpan offsets) {
  bool are_texts = true;
  for (int64_t i = 0; i + 1 < offsets.size; i++) {
    const ByteRange text = range_of(data, offsets[i], offsets[i + 1] - offsets[i]);
    if (!text.is_there()) return BOUNDS;
    are_texts = are_texts && !has_control(text) && image_format(text) == NO_IMAGE;
  }
  return are_texts;
}

}  // namespace rm
