// Protobuf's wire format: varints, length-delimited fields, packed lists of varints.
#pragma once

#include "masks.h"

namespace rm {

constexpr uint64_t GO_ON = 0x8080808080808080u;  // in each byte the bit that says that a varint goes on

enum { FIELD_1 = 0x0A, FIELD_2 = 0x12, FIELD_3 = 0x1A };                 // tags of length-delimited fields
enum { BYTES_TAG = FIELD_1, FLOAT_TAG = FIELD_2, INT64_TAG = FIELD_3 };  // of the list in a Feature

// A stretch of bytes; at is NULL where there is none: a message is damaged, or written in an unusual way.
struct ByteRange {
  const uint8_t *at, *end;

  RM_INLINE bool is_there() const { return at != nullptr; }
  RM_INLINE int64_t size() const { return end - at; }
};

constexpr ByteRange NO_RANGE{nullptr, nullptr};

// A stretch of data, if it lies in them.
RM_INLINE ByteRange range_of(ByteSpan data, int64_t start, int64_t size) {
  return data.holds(start, size) ? ByteRange{data.data + start, data.data + start + size} : NO_RANGE;
}

// A number and the place after it, NULL where it is cut off or has more than ten bytes.
struct Varint {
  uint64_t value;
  const uint8_t *after;
};

// The value of the varint that a word of four or eight bytes begins with, if it fits: groups of 7 bits, moved together.
template <typename Word>
RM_INLINE Word first_varint(Word word) {
  const Word stops = ~word & static_cast<Word>(GO_ON);
  const auto join = [&](uint64_t low, uint64_t high, int by) { word = (word & Word(low)) | (word & Word(high)) >> by; };
  word &= stops ^ (stops - 1);
  join(0x007F007F007F007Fu, 0x7F007F007F007F00u, 1);
  join(0x00003FFF00003FFFu, 0x3FFF00003FFF0000u, 2);
  if (sizeof(Word) == 8) join(0x000000000FFFFFFFu, 0x0FFFFFFF00000000u, 4);
  return word;
}

inline Varint read_varint_bytes(const uint8_t *at, const uint8_t *end) {
  uint64_t value = 0;
  for (int i = 0; i < 10 && at + i < end; i++) {
    value |= static_cast<uint64_t>(at[i] & 0x7F) << (7 * i);
    if (at[i] < 0x80) return {value, at + i + 1};
  }
  return {value, nullptr};
}

// Reads a varint that ends at `end` or before; up to limit, which is there or after it, memory can be read. No branch
// depends on how many bytes it has, up to eight. Bits beyond the 64th are dropped; a longer form than needed is as good.
RM_INLINE Varint read_varint(const uint8_t *at, const uint8_t *end, const uint8_t *limit) {
  if (RM_LIKELY(limit - at >= 8)) {
    const uint64_t word = load<uint64_t>(at), stops = ~word & GO_ON;
    if (stops != 0) {
      const uint8_t *const after = at + (first_bit(stops) >> 3) + 1;
      if (RM_LIKELY(after <= end)) return {first_varint(word), after};
    } else if (end - at >= 10) {  // negative numbers have ten bytes
      const uint64_t low = first_varint(word), ninth = at[8], tenth = at[9];
      if (ninth < 0x80) return {low | ninth << 56, at + 9};
      if (tenth < 0x80) return {low | (ninth & 0x7F) << 56 | tenth << 63, at + 10};
    }
  }
  return read_varint_bytes(at, end);
}

// Reads the content of a length-delimited field, from its length on; protobuf's limit is 2 GiB.
RM_INLINE ByteRange read_content(const uint8_t *at, const uint8_t *end) {
  if (RM_UNLIKELY(at >= end)) return NO_RANGE;
  if (RM_LIKELY(*at < 0x80)) return *at < end - at ? ByteRange{at + 1, at + 1 + *at} : NO_RANGE;
  const auto [size, after] = read_varint_bytes(at, min(end, at + 5));
  const bool fits = after != nullptr && size <= 0x7FFFFFFF && static_cast<int64_t>(size) <= end - after;
  return fits ? ByteRange{after, after + size} : NO_RANGE;
}

// The bytes of a number as a varint: 1 to 10.
RM_INLINE int64_t varint_bytes(uint64_t value) { return ((64 - leading_zeros(value | 1)) * 9 + 64) >> 6; }

// The low 56 bits, 7 to a byte.
RM_INLINE uint64_t spread_bits(uint64_t value) {
  value = (value & 0x000000000FFFFFFFu) | ((value & 0x00FFFFFFF0000000u) << 4);
  value = (value & 0x00003FFF00003FFFu) | ((value & 0x0FFFC0000FFFC000u) << 2);
  return (value & 0x007F007F007F007Fu) | ((value & 0x3F803F803F803F80u) << 1);
}

// Writes a varint, and up to 7 bytes more; gives the place after it.
RM_INLINE uint8_t *put_varint(uint8_t *to, uint64_t value) {
  if (value < 0x80) {
    *to = static_cast<uint8_t>(value);
    return to + 1;
  }
  const int64_t size = varint_bytes(value);
  if (RM_LIKELY(size <= 8)) {
    store(to, spread_bits(value) | (GO_ON & ((uint64_t{1} << (8 * (size - 1))) - 1)));
  } else {
    store(to, spread_bits(value) | GO_ON);
    to[8] = static_cast<uint8_t>(value >> 56);  // bit 63 is its sign to go on
    if (size == 10) to[9] = 1;
  }
  return to + size;
}

// The bits that any of these numbers has; they may stand at any address.
RM_INLINE uint64_t joined_bits(const uint8_t *numbers, int64_t count) {
  uint64_t bits = 0;
  for (int64_t i = 0; i < count; i++) bits |= load<uint64_t>(numbers + 8 * i);
  return bits;
}

// The bytes of numbers as varints.
RM_INLINE int64_t varints_bytes(const uint8_t *numbers, int64_t count) {
  if (joined_bits(numbers, count) < 0x80) return count;
  int64_t size = 0;
  for (int64_t i = 0; i < count; i++) size += varint_bytes(load<uint64_t>(numbers + 8 * i));
  return size;
}

// Writes numbers of at most 28 bits: the words in vector code, then each of them over the end of the one before.
RM_INLINE uint8_t *put_short_varints(uint8_t *to, const uint8_t *numbers, int64_t count) {
  constexpr int64_t RUN = 64;
  uint32_t words[RUN], sizes[RUN];
  for (int64_t first = 0; first < count; first += RUN) {
    const int64_t run = min(count - first, RUN);
    for (int64_t i = 0; i < run; i++) {
      uint32_t value = load<uint32_t>(numbers + 8 * (first + i));
      sizes[i] = 1 + (value >= 1 << 7) + (value >= 1 << 14) + (value >= 1 << 21);
      value = (value & 0x3FFF) | (value & 0xFFFC000) << 2;
      value = (value & 0x007F007F) | (value & 0x3F803F80) << 1;
      words[i] = value | 0x808080u >> (32 - 8 * sizes[i]);
    }
    for (int64_t i = 0; i < run; to += sizes[i++]) store(to, words[i]);
  }
  return to;
}

// Writes numbers as varints, and up to 7 bytes more; gives the place after them.
RM_INLINE uint8_t *put_varints(uint8_t *to, const uint8_t *numbers, int64_t count) {
  const uint64_t bits = joined_bits(numbers, count);
  if (bits < 0x80) {
    for (int64_t i = 0; i < count; i++) to[i] = numbers[8 * i];
    return to + count;
  }
  if (bits >> 28 == 0) return put_short_varints(to, numbers, count);
  for (int64_t i = 0; i < count; i++) to = put_varint(to, load<uint64_t>(numbers + 8 * i));
  return to;
}

}  // namespace rm
