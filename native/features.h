// Messages of tf.train.Example and SequenceExample in their plain form: each part once and in order, entries of the maps
// with a key and then a value, one list in a Feature, its numbers in one packed run. All that is written otherwise is
// unusual, and left to protobuf.
#pragma once

#include "wire.h"

namespace rm {

// The next length-delimited field with this tag of [at, end), at < end.
RM_INLINE ByteRange next_field(const uint8_t *at, const uint8_t *end, uint8_t tag) {
  return RM_LIKELY(*at == tag) ? read_content(at + 1, end) : NO_RANGE;
}

// Calls visit(content) for each field 1 that stands in the list, up to a call that gives false; whether there is nothing
// else, and all were visited.
template <typename Visit>
RM_INLINE bool each_field(ByteRange list, Visit visit) {
  for (const uint8_t *at = list.at; at < list.end;) {
    const ByteRange field = next_field(at, list.end, FIELD_1);
    if (!field.is_there() || !visit(field)) return false;
    at = field.end;
  }
  return true;
}

// The values in a Feature's list: byte strings with tags and lengths, or the content of a packed run.
RM_INLINE ByteRange plain_values(ByteRange list, uint8_t tag) {
  if (tag == BYTES_TAG) return each_field(list, [](ByteRange) { return true; }) ? list : NO_RANGE;
  if (list.size() == 0) return list;
  const ByteRange run = next_field(list.at, list.end, FIELD_1);
  return run.end != list.end || (tag == FLOAT_TAG && run.size() % 4 != 0) ? NO_RANGE : run;
}

// Whether it is a whole number of varints, none too long.
inline bool are_varints(ByteRange run) {
  int64_t length = 0;
  for (const uint8_t *at = run.at; at < run.end && length < 10; at++) length = *at >= 0x80 ? length + 1 : 0;
  return length == 0;
}

// Whether it is a plain Feature; is_thorough: its varints are looked at, too.
inline bool is_plain_feature(ByteRange feature, bool is_thorough) {
  if (feature.size() == 0) return true;
  const uint8_t tag = *feature.at;
  const ByteRange list = read_content(feature.at + 1, feature.end);
  if (list.end != feature.end || (tag != BYTES_TAG && tag != FLOAT_TAG && tag != INT64_TAG)) return false;
  const ByteRange values = plain_values(list, tag);
  return values.is_there() && (tag != INT64_TAG || !is_thorough || are_varints(values));
}

// Whether it is a FeatureList of plain Features.
inline bool are_plain_steps(ByteRange list, bool is_thorough) {
  return each_field(list, [&](ByteRange step) { return is_plain_feature(step, is_thorough); });
}

// An entry of a map. value: empty at the end of the key where there is none: a Feature without a list.
struct Entry {
  ByteRange key, value;
};

// The map's entry at `at`; its value is NO_RANGE if it is unusual.
RM_INLINE Entry next_entry(const uint8_t *at, const uint8_t *end) {
  const ByteRange entry = next_field(at, end, FIELD_1);
  if (entry.is_there() && entry.size() > 0) {
    const ByteRange key = next_field(entry.at, entry.end, FIELD_1);
    if (key.end == entry.end) return {key, {key.end, key.end}};
    if (key.is_there()) {
      const ByteRange value = next_field(key.end, entry.end, FIELD_2);
      if (value.end == entry.end) return {key, value};
    }
  }
  return {NO_RANGE, NO_RANGE};
}

}  // namespace rm
