// A parser of tf.train.Example and SequenceExample in their plain form: each map once and in order, each entry of a map with
// a key and then a value, one list in each Feature, and the numbers of a list packed in one field. All known writers
// produce this form. A message in any other form is UNUSUAL, and Python passes it to protobuf.
//
//   Example          { features: map<string, Feature> = 1 }
//   SequenceExample  { context: map<string, Feature> = 1, feature_lists: map<string, FeatureList> = 2 }
//   FeatureList      { feature: repeated Feature = 1 }
//   Feature          { bytes_list = 1 | float_list = 2 | int64_list = 3 }, each with { value: repeated = 1 }
//
// Source: tensorflow/core/example/example.proto and feature.proto.
#pragma once

#include "wire.h"

namespace rm {

// Reads the field at `begin`, which is before `end`. Returns its content, or NO_RANGE if it has another tag.
RM_INLINE ByteRange next_field(const uint8_t *begin, const uint8_t *end, uint8_t tag) {
  RM_ASSERT(begin < end);
  return RM_LIKELY(*begin == tag) ? read_content(begin + 1, end) : NO_RANGE;
}

// Calls visit(content) for each field 1 of a list, until a call returns false. Returns whether all fields were visited and
// there is nothing else in the list.
template <typename Visit>
RM_INLINE bool each_field(ByteRange list, Visit visit) {
  for (const uint8_t *next = list.begin; next < list.end;) {
    const ByteRange field = next_field(next, list.end, FIELD_1);
    if (!field.is_valid() || !visit(field)) return false;
    next = field.end;
  }
  return true;
}

// Returns the values in the list of a Feature: for byte strings the list itself, for numbers the content of its packed field.
RM_INLINE ByteRange plain_values(ByteRange list, uint8_t tag) {
  if (tag == BYTES_TAG) return each_field(list, [](ByteRange) { return true; }) ? list : NO_RANGE;
  if (list.size() == 0) return list;
  const ByteRange packed = next_field(list.begin, list.end, FIELD_1);
  return packed.end != list.end || (tag == FLOAT_TAG && packed.size() % 4 != 0) ? NO_RANGE : packed;
}

// Returns whether packed bytes are complete varints of at most ten bytes.
inline bool are_varints(ByteRange packed) {
  int64_t length = 0;
  for (const uint8_t *byte = packed.begin; byte < packed.end && length < 10; byte++)
    length = *byte >= 0x80 ? length + 1 : 0;
  return length == 0;
}

// Returns whether a Feature is in the plain form. checks_varints: also checks each varint.
inline bool is_plain_feature(ByteRange feature, bool checks_varints) {
  if (feature.size() == 0) return true;
  const uint8_t tag = *feature.begin;
  const ByteRange list = read_content(feature.begin + 1, feature.end);
  if (list.end != feature.end || (tag != BYTES_TAG && tag != FLOAT_TAG && tag != INT64_TAG)) return false;
  const ByteRange values = plain_values(list, tag);
  return values.is_valid() && (tag != INT64_TAG || !checks_varints || are_varints(values));
}

// Returns whether a FeatureList has only Features in the plain form.
inline bool are_plain_steps(ByteRange list, bool checks_varints) {
  return each_field(list, [&](ByteRange step) { return is_plain_feature(step, checks_varints); });
}

// An entry of a map. A missing value is an empty range after the key: a Feature without a list.
struct Entry {
  ByteRange key, value;
};

// Reads the entry of a map at `begin`. Its value is NO_RANGE if the entry is not in the plain form.
RM_INLINE Entry next_entry(const uint8_t *begin, const uint8_t *end) {
  const ByteRange entry = next_field(begin, end, FIELD_1);
  if (entry.is_valid() && entry.size() > 0) {
    const ByteRange key = next_field(entry.begin, entry.end, FIELD_1);
    if (key.end == entry.end) return {key, {key.end, key.end}};
    if (key.is_valid()) {
      const ByteRange value = next_field(key.end, entry.end, FIELD_2);
      if (value.end == entry.end) return {key, value};
    }
  }
  return {NO_RANGE, NO_RANGE};
}

// Calls visit(part, map) for each map of a message, until a call returns another status than GOOD. Returns that status, or
// UNUSUAL if the message is not in the plain form. part: 1 for features or context, 2 for feature lists.
//   map_count: 1 for Example, 2 for SequenceExample.
template <typename Visit>
RM_INLINE RecordStatus each_map(ByteRange message, int64_t map_count, Visit visit) {
  int64_t last_part = 0;
  for (const uint8_t *next = message.begin; next < message.end;) {
    const int64_t part = *next == FIELD_1 ? 1 : *next == FIELD_2 ? 2 : 0;
    const ByteRange map = read_content(next + 1, message.end);
    if (part <= last_part || part > map_count || !map.is_valid()) return RecordStatus::UNUSUAL;
    if (const RecordStatus status = visit(part, map); status != RecordStatus::GOOD) return status;
    last_part = part;
    next = map.end;
  }
  return RecordStatus::GOOD;
}

// A name to look up, with its first and last eight bytes, which make comparisons fast.
struct Key {
  const uint8_t *begin;
  int64_t size, part;
  uint64_t head, tail;

  // limit: the end of readable memory.
  RM_INLINE Key(ByteRange name, int64_t part, const uint8_t *limit)
      : begin(name.begin), size(name.size()), part(part), head(0) {
    if (size >= 8) head = load<uint64_t>(begin);
    else if (limit - begin >= 8) head = load<uint64_t>(begin) & ((uint64_t{1} << (8 * size)) - 1);
    else
      for (int64_t i = 0; i < size; i++) head |= static_cast<uint64_t>(begin[i]) << (8 * i);
    tail = size > 8 ? load<uint64_t>(begin + size - 8) : head;
  }
};

// A table that maps names to slot numbers, in an array of the caller. New names are added.
//
// Each slot predicts the slot that follows it: the one that did so last time. In files of one writer the prediction is
// nearly always right, so a lookup is one comparison of the length and the first and last eight bytes (and of the bytes
// between them, if there are more than 16). If it is wrong, the name is found by a hash of all its bytes. The slots are
// also the heads of hash chains: slot h refers to the newest name with hash h, and each name refers to the one before it.
class Names {
 public:
  static constexpr int64_t NONE = -1;

  // Either fits() or begin() must be called first.
  explicit Names(Span<int64_t> table) : head_(reinterpret_cast<NamesHead *>(table.data)), size_(table.size) {}
  // Returns the number of int64 that a table needs for `names` names with `text_bytes` bytes together.
  static int64_t room(int64_t names, int64_t text_bytes) { return HEAD + (names + 1) * SLOT + (text_bytes + 7) / 8; }
  // Makes an empty table. Slot 0 represents the beginning of a record.
  void begin(int64_t names, int64_t text_bytes) {
    memset(static_cast<void *>(head_), 0, static_cast<size_t>(room(names, text_bytes)) * sizeof(int64_t));
    *head_ = {names + 1, text_bytes, 1, 0};
    find_sections();
    slots_[0].size = -1;  // a length that no name has, so that it is never found
  }
  // Returns whether the table is inside its array, and all its indices are inside the table.
  bool fits() {
    const int64_t limit = int64_t{1} << 31;  // keeps the sums in room() from overflowing
    if (size_ < HEAD || head_->slots < 1 || head_->slots > limit) return false;
    if (head_->text_bytes < 0 || head_->text_bytes > limit) return false;
    if (size_ < room(head_->slots - 1, head_->text_bytes)) return false;
    if (head_->used_slots < 1 || head_->used_slots > head_->slots) return false;
    if (head_->used_text_bytes < 0 || head_->used_text_bytes > head_->text_bytes) return false;
    find_sections();
    const ByteSpan text{text_, head_->used_text_bytes};
    for (int64_t i = 0; i < head_->used_slots; i++) {
      const NameSlot &slot = slots_[i];
      if (slot.next < 0 || slot.next >= head_->used_slots) return false;
      // A chain leads to lower slots only, so that it ends.
      if (slot.before < 0 || slot.before > max(i - 1, int64_t{0})) return false;
      if (!text.holds(slot.text, i == 0 ? max(slot.size, int64_t{0}) : slot.size)) return false;
    }
    for (int64_t i = 0; i < head_->slots; i++)
      if (slots_[i].newest < 0 || slots_[i].newest >= head_->used_slots) return false;
    return true;
  }
  int64_t slots() const { return head_->slots; }
  int64_t used() const { return head_->used_slots; }
  RM_INLINE ByteSpan text(int64_t slot) const { return {text_ + slots_[slot].text, slots_[slot].size}; }
  // Returns the unused bytes for names. A name may be written there before it is added.
  RM_INLINE Span<uint8_t> free_text() const {
    return {text_ + head_->used_text_bytes, head_->text_bytes - head_->used_text_bytes};
  }

  // Returns the slot predicted after the previous one if it has this name, else NONE.
  RM_INLINE int64_t predicted(int64_t previous, const Key &key) const {
    const int64_t slot = slots_[previous].next;
    return has_name(slots_[slot], key) ? slot : NONE;
  }
  // Finds or adds a key after a wrong prediction, and predicts it from now on. Returns 0 if there is no room for it, and
  // NONE if it is not UTF-8.
  __attribute__((noinline)) int64_t find(int64_t previous, Key key) {
    if (find_bad_utf8(key.begin, 0, key.size) >= 0) return NONE;
    const int64_t slot = max(add(key), int64_t{0});
    slots_[previous].next = slot;
    return slot;
  }
  // Returns the slot of the key, which is added if it is new; NONE if there is no room for it.
  int64_t add(const Key &key) {
    uint64_t hash = (key.head * GOLDEN) ^ (key.tail * MIX_2 >> 7);
    hash ^= static_cast<uint64_t>(2 * key.size + key.part) * GOLDEN;
    for (int64_t i = 8; i < key.size - 8; i += 8) hash = (hash ^ hash >> 31 ^ load<uint64_t>(key.begin + i)) * MIX_2;
    hash = (hash ^ hash >> 29) % static_cast<uint64_t>(head_->slots);
    for (int64_t slot = slots_[hash].newest; slot > 0; slot = slots_[slot].before)
      if (has_name(slots_[slot], key)) return slot;
    if (head_->used_slots >= head_->slots || key.size > free_text().size) return NONE;
    const int64_t text = head_->used_text_bytes, slot = head_->used_slots++;
    head_->used_text_bytes += key.size;
    memmove(text_ + text, key.begin, static_cast<size_t>(key.size));  // it may be in free_text() already
    slots_[slot] = {text, key.size, key.part, 0, slots_[slot].newest, slots_[hash].newest, key.head, key.tail};
    slots_[hash].newest = slot;
    return slot;
  }

 private:
  static constexpr int64_t HEAD = sizeof(NamesHead) / 8, SLOT = sizeof(NameSlot) / 8;
  static constexpr uint64_t MIX_2 = 0xD65860A4C70593B1u;  // any odd number

  void find_sections() {
    slots_ = reinterpret_cast<NameSlot *>(reinterpret_cast<int64_t *>(head_) + HEAD);
    text_ = reinterpret_cast<uint8_t *>(slots_ + head_->slots);
  }
  RM_INLINE bool has_name(const NameSlot &slot, const Key &key) const {
    if (slot.size != key.size || slot.head != key.head || slot.tail != key.tail || slot.part != key.part) return false;
    for (int64_t i = 8; i < key.size - 8; i += 8)
      if (load<uint64_t>(text_ + slot.text + i) != load<uint64_t>(key.begin + i)) return false;
    return true;
  }

  NamesHead *head_;
  int64_t size_;
  NameSlot *slots_ = nullptr;
  uint8_t *text_ = nullptr;
};

// Calls visit(slot, value) for each entry of a map, until a call returns another status than GOOD. Returns that status, or
// UNUSUAL if an entry is not in the plain form. The slot is 0 if there is no room for the name.
//   part: 1 or 2, see each_map.
//   limit: the end of readable memory.
//   is_name(key): returns whether a key that is not in the table may be added.
template <typename IsName, typename Visit>
RM_INLINE RecordStatus each_entry(ByteRange map, int64_t part, Names &names, const uint8_t *limit, IsName is_name,
                                  Visit visit) {
  int64_t slot = 0;
  for (const uint8_t *next = map.begin; next < map.end;) {
    const Entry entry = next_entry(next, map.end);
    if (!entry.value.is_valid()) return RecordStatus::UNUSUAL;
    next = entry.value.end;
    const Key key(entry.key, part, limit);
    const int64_t previous = slot;
    slot = names.predicted(previous, key);
    if (RM_UNLIKELY(slot < 0) && is_name(entry.key)) slot = names.find(previous, key);
    if (RM_UNLIKELY(slot < 0)) return RecordStatus::UNUSUAL;
    if (const RecordStatus status = visit(slot, entry.value); status != RecordStatus::GOOD) return status;
  }
  return RecordStatus::GOOD;
}

}  // namespace rm
