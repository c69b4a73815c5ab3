// What a tape of JSON values consists of; see json.cpp.
#ifndef RECORDMILL_JSON_H
#define RECORDMILL_JSON_H

#include "common.h"

namespace rm {

using Bytes = Span<const uint8_t>;

// A value on a tape.
struct JsonValue {
  static constexpr int KIND_BITS = 4;

  int32_t head;         // node << KIND_BITS | kind
  int32_t around;       // the ordinal of the object or array around it among its node's values; of the record, at the top
  int32_t start, stop;  // its text, of a string what stands between the quotes; start alone of objects and arrays

  RM_INLINE int32_t node() const { return head >> KIND_BITS; }
  RM_INLINE int kind() const { return head & ((1 << KIND_BITS) - 1); }
};

// An array of the interface as one of structs that consist of its numbers.
template <typename Struct, typename Number>
RM_INLINE Span<Struct> spans_of(Number *numbers, int64_t size) {
  return {reinterpret_cast<Struct *>(numbers), size / static_cast<int64_t>(sizeof(Struct) / sizeof(Number))};
}

// Copies a short text with room after it on both sides by one move, others by memcpy; returns its length.
RM_INLINE int64_t copy_text(uint8_t *into, int64_t room, const uint8_t *from, int64_t there, int64_t length) {
  if (RM_LIKELY(length <= 16 && room >= 16 && there >= 16))
    memcpy(into, from, 16);
  else
    memcpy(into, from, static_cast<size_t>(length));
  return length;
}

}  // namespace rm

#endif
