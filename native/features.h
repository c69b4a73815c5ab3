// Messages of tf.train.Example and SequenceExample in their plain form: each part once and in order, entries of the
// maps with a key and then a value, one list in a Feature, its numbers in one packed run. All that is written otherwise
// is unusual, and left to protobuf.
#pragma once

#include "wire.h"

namespace rm {

// The next length-delimited field with this tag of [at, end), at < end.
RM_INLINE ByteRange next_field(const uint8_t *at, const uint8_t *end, uint8_t tag) {
  return RM_LIKELY(*at == tag) ? read_content(at + 1, end) : NO_RANGE;
}

// Calls visit(content) for each field 1 in the list, up to a call that gives false; whether there is nothing else, and
// all were visited.
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

// Calls visit(part, map) for the maps of a message, of parts 1 to `most`, each of which comes once and in order, up to
// a reason that it gives; gives that, UNUSUAL where it stops for another, or 0.
template <typename Visit>
RM_INLINE int64_t each_map(ByteRange message, int64_t most, Visit visit) {
  int64_t last = 0;
  for (const uint8_t *at = message.at; at < message.end;) {
    const int64_t part = *at == FIELD_1 ? 1 : *at == FIELD_2 ? 2 : 0;
    const ByteRange map = read_content(at + 1, message.end);
    if (part <= last || part > most || !map.is_there()) return UNUSUAL;
    if (const int64_t reason = visit(part, map)) return reason;
    last = part;
    at = map.end;
  }
  return 0;
}

// A key with what it is compared by.
struct Key {
  const uint8_t *at;
  int64_t size, part;
  uint64_t first, last;

  // Up to limit memory can be read.
  RM_INLINE Key(ByteRange name, int64_t part, const uint8_t *limit) : at(name.at), size(name.size()), part(part), first(0) {
    if (size >= 8) first = load<uint64_t>(at);
    else if (limit - at >= 8) first = load<uint64_t>(at) & ((uint64_t{1} << (8 * size)) - 1);
    else
      for (int64_t i = 0; i < size; i++) first |= static_cast<uint64_t>(at[i]) << (8 * i);
    last = size > 8 ? load<uint64_t>(at + size - 8) : first;
  }
};

// A table of names: a key's bytes in, the number of its slot out; names are added as they turn up.
//
// A name is found by a hash of all its bytes, and compared by its length and its first and last eight bytes; only names
// of more than 16 bytes are compared further. Before the table is asked stands a prediction: the name that came after
// the previous one last time, which in files of one program is right nearly always.
class Names {
 public:
  static constexpr int64_t NONE = -1;

  // Nothing but fits() and begin() may be called before one of these.
  explicit Names(Span<int64_t> table) : head_(reinterpret_cast<NamesHead *>(table.data)), size_(table.size) {}
  // The numbers that a table needs for so many names, and so many bytes of names.
  static int64_t room(int64_t names, int64_t text_bytes) { return HEAD + (names + 1) * SLOT + (text_bytes + 7) / 8; }
  // Makes an empty table of zeros; slot 0 stands for the beginning of a record.
  void begin(int64_t names, int64_t text_bytes) {
    *head_ = {names + 1, text_bytes, 1, 0};
    find_parts();
    slots_[0].size = -1;  // no name has this length
  }
  // Whether all of the table lies in the array.
  bool fits() {
    const int64_t most = int64_t{1} << 31;
    if (size_ < HEAD || head_->slots < 1 || head_->slots > most || head_->text < 0 || head_->text > most) return false;
    if (size_ < room(head_->slots - 1, head_->text)) return false;
    if (head_->used < 1 || head_->used > head_->slots || head_->used_text < 0 || head_->used_text > head_->text) return false;
    find_parts();
    const ByteSpan text{text_, head_->used_text};
    for (int64_t i = 0; i < head_->used; i++) {
      const NameSlot &slot = slots_[i];
      if (slot.next < 0 || slot.next >= head_->used || slot.before < 0 || slot.before > max(i - 1, int64_t{0})) return false;
      if (!text.holds(slot.text, i == 0 ? max(slot.size, int64_t{0}) : slot.size)) return false;
    }
    for (int64_t i = 0; i < head_->slots; i++)
      if (slots_[i].newest < 0 || slots_[i].newest >= head_->used) return false;
    return true;
  }
  int64_t slots() const { return head_->slots; }
  int64_t used() const { return head_->used; }
  RM_INLINE ByteSpan text(int64_t slot) const { return {text_ + slots_[slot].text, slots_[slot].size}; }
  // Room for more bytes of names; one that is added may stand there already.
  RM_INLINE Span<uint8_t> free() const { return {text_ + head_->used_text, head_->text - head_->used_text}; }

  // The slot predicted after the previous one if it has this name, else NONE.
  RM_INLINE int64_t predicted(int64_t previous, const Key &key) const {
    const int64_t slot = slots_[previous].next;
    return is_name(slots_[slot], key) ? slot : NONE;
  }
  // The slot of the key, where the prediction has failed; 0 if there is no room for it, NONE if it is not UTF-8.
  __attribute__((noinline)) int64_t find(int64_t previous, Key key) {
    if (find_bad_utf8(key.at, 0, key.size) >= 0) return NONE;
    const int64_t slot = max(add(key), int64_t{0});
    slots_[previous].next = slot;
    return slot;
  }
  // The slot of the key, added if it is new; NONE if there is no room for it.
  int64_t add(const Key &key) {
    uint64_t hash = (key.first * GOLDEN) ^ (key.last * MIX_2 >> 7) ^ (static_cast<uint64_t>(2 * key.size + key.part) * GOLDEN);
    for (int64_t i = 8; i < key.size - 8; i += 8) hash = (hash ^ hash >> 31 ^ load<uint64_t>(key.at + i)) * MIX_2;
    hash = (hash ^ hash >> 29) % static_cast<uint64_t>(head_->slots);
    for (int64_t slot = slots_[hash].newest; slot > 0; slot = slots_[slot].before)
      if (is_name(slots_[slot], key)) return slot;
    if (head_->used >= head_->slots || key.size > free().size) return NONE;
    const int64_t text = head_->used_text, slot = head_->used++;
    head_->used_text += key.size;
    memmove(text_ + text, key.at, static_cast<size_t>(key.size));
    slots_[slot] = {text, key.size, key.part, 0, slots_[slot].newest, slots_[hash].newest, key.first, key.last};
    slots_[hash].newest = slot;
    return slot;
  }

 private:
  static constexpr int64_t HEAD = sizeof(NamesHead) / 8, SLOT = sizeof(NameSlot) / 8;
  static constexpr uint64_t MIX_2 = 0xD65860A4C70593B1u;  // any odd number

  void find_parts() {
    slots_ = reinterpret_cast<NameSlot *>(reinterpret_cast<int64_t *>(head_) + HEAD);
    text_ = reinterpret_cast<uint8_t *>(slots_ + head_->slots);
  }
  RM_INLINE bool is_name(const NameSlot &slot, const Key &key) const {
    if (slot.size != key.size || slot.first != key.first || slot.last != key.last || slot.part != key.part) return false;
    for (int64_t i = 8; i < key.size - 8; i += 8)
      if (load<uint64_t>(text_ + slot.text + i) != load<uint64_t>(key.at + i)) return false;
    return true;
  }

  NamesHead *head_;
  int64_t size_;
  NameSlot *slots_ = nullptr;
  uint8_t *text_ = nullptr;
};

// Calls visit(slot, value) for the entries of a map, of part 1 or 2, up to a reason that it gives; gives that, UNUSUAL
// where an entry is, or 0. is_name: whether a key that is not in the table may be added. slot: 0 without room for it.
template <typename IsName, typename Visit>
RM_INLINE int64_t each_entry(ByteRange map, int64_t part, Names &names, const uint8_t *limit, IsName is_name, Visit visit) {
  int64_t slot = 0;
  for (const uint8_t *at = map.at; at < map.end;) {
    const Entry entry = next_entry(at, map.end);
    if (!entry.value.is_there()) return UNUSUAL;
    at = entry.value.end;
    const Key key(entry.key, part, limit);
    const int64_t previous = slot;
    slot = names.predicted(previous, key);
    if (RM_UNLIKELY(slot < 0) && is_name(entry.key)) slot = names.find(previous, key);
    if (RM_UNLIKELY(slot < 0)) return UNUSUAL;
    if (const int64_t reason = visit(slot, entry.value)) return reason;
  }
  return 0;
}

}  // namespace rm
