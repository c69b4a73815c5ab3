// Protobuf's wire format: varints, length-delimited fields, packed lists of varints.
//
// Source: protobuf.dev/programming-guides/encoding.
#pragma once

#include "masks.h"

namespace rm {

constexpr uint64_t CONTINUATION_BITS = 0x8080808080808080u;  // the bit of each byte that means that a varint continues

enum { FIELD_1 = 0x0A, FIELD_2 = 0x12, FIELD_3 = 0x1A };                 // tags: field number * 8 + 2 (length-delimited)
enum { BYTES_TAG = FIELD_1, FLOAT_TAG = FIELD_2, INT64_TAG = FIELD_3 };  // tag of the list in a Feature, by its type

// Bytes of a message. `begin` is NULL if they could not be read: the message is damaged, or not in the plain form.
struct ByteRange {
  const uint8_t *begin, *end;

  RM_INLINE bool is_valid() const { return begin != nullptr; }
  RM_INLINE int64_t size() const { return end - begin; }
};

constexpr ByteRange NO_RANGE{nullptr, nullptr};

// Returns data[start : start + size], or NO_RANGE if it is not inside the data.
RM_INLINE ByteRange range_of(ByteSpan data, int64_t start, int64_t size) {
  return data.holds(start, size) ? ByteRange{data.data + start, data.data + start + size} : NO_RANGE;
}

// A number and the position after it, which is NULL if the varint is cut off or has more than ten bytes.
struct Varint {
  uint64_t value;
  const uint8_t *after;
};

// Returns the varint at the start of a word of four or eight bytes, if all of it is there. The groups of 7 bits are moved
// together in steps, each of which closes the gaps of neighbours (shown for four bytes, highest first):
//
//   .ddddddd .ccccccc .bbbbbbb .aaaaaaa  ->  ..dddddddccccccc ..bbbbbbbaaaaaaa  ->  ....ddddddd...aaaaaaa
template <typename Word>
RM_INLINE Word first_varint(Word word) {
  const Word stops = ~word & static_cast<Word>(CONTINUATION_BITS);
  const auto join = [&](uint64_t low, uint64_t high, int by) { word = (word & Word(low)) | (word & Word(high)) >> by; };
  word &= stops ^ (stops - 1);  // keeps the bits up to the first byte that ends a varint
  join(0x007F007F007F007Fu, 0x7F007F007F007F00u, 1);
  join(0x00003FFF00003FFFu, 0x3FFF00003FFF0000u, 2);
  if (sizeof(Word) == 8) join(0x000000000FFFFFFFu, 0x0FFFFFFF00000000u, 4);
  return word;
}

inline Varint read_varint_bytes(const uint8_t *begin, const uint8_t *end) {
  uint64_t value = 0;
  for (int i = 0; i < 10 && begin + i < end; i++) {
    value |= static_cast<uint64_t>(begin[i] & 0x7F) << (7 * i);
    if (begin[i] < 0x80) return {value, begin + i + 1};
  }
  return {value, nullptr};
}

// Reads the varint at `begin`, which must end at `end` or before. Up to eight bytes, no branch depends on its length, so
// that mixed lengths cause no mispredictions. As in protobuf, bits beyond the 64th are dropped, and a longer form than
// needed is accepted.
//   limit: the end of readable memory, at or after `end`.
RM_INLINE Varint read_varint(const uint8_t *begin, const uint8_t *end, const uint8_t *limit) {
  if (RM_LIKELY(limit - begin >= 8)) {
    const uint64_t word = load<uint64_t>(begin), stops = ~word & CONTINUATION_BITS;
    if (stops != 0) {
      const uint8_t *const after = begin + (first_bit(stops) >> 3) + 1;
      if (RM_LIKELY(after <= end)) return {first_varint(word), after};
    } else if (end - begin >= 10) {  // negative numbers have ten bytes
      const uint64_t low = first_varint(word), ninth = begin[8], tenth = begin[9];
      if (ninth < 0x80) return {low | ninth << 56, begin + 9};
      if (tenth < 0x80) return {low | (ninth & 0x7F) << 56 | tenth << 63, begin + 10};
    }
  }
  return read_varint_bytes(begin, end);
}

// Reads the content of a length-delimited field. length: the position of its length, after the tag. A length above 2 GiB,
// protobuf's limit, is invalid.
RM_INLINE ByteRange read_content(const uint8_t *length, const uint8_t *end) {
  if (RM_UNLIKELY(length >= end)) return NO_RANGE;
  if (RM_LIKELY(*length < 0x80)) return *length < end - length ? ByteRange{length + 1, length + 1 + *length} : NO_RANGE;
  const auto [size, after] = read_varint_bytes(length, min(end, length + 5));
  const bool fits = after != nullptr && size <= 0x7FFFFFFF && static_cast<int64_t>(size) <= end - after;
  return fits ? ByteRange{after, after + size} : NO_RANGE;
}

// Returns the size of a number as a varint, 1 to 10. It is ceil(bits / 7), without a division.
RM_INLINE int64_t varint_bytes(uint64_t value) { return ((64 - leading_zeros(value | 1)) * 9 + 64) >> 6; }

// Spreads the low 56 bits over eight bytes, 7 to each: the reverse of first_varint.
RM_INLINE uint64_t spread_bits(uint64_t value) {
  value = (value & 0x000000000FFFFFFFu) | ((value & 0x00FFFFFFF0000000u) << 4);
  value = (value & 0x00003FFF00003FFFu) | ((value & 0x0FFFC0000FFFC000u) << 2);
  return (value & 0x007F007F007F007Fu) | ((value & 0x3F803F803F803F80u) << 1);
}

// Writes a varint. Returns the position after it. Up to 7 bytes after it are overwritten.
RM_INLINE uint8_t *put_varint(uint8_t *to, uint64_t value) {
  if (value < 0x80) {
    *to = static_cast<uint8_t>(value);
    return to + 1;
  }
  const int64_t size = varint_bytes(value);
  if (RM_LIKELY(size <= 8)) {
    store(to, spread_bits(value) | (CONTINUATION_BITS & ((uint64_t{1} << (8 * (size - 1))) - 1)));
  } else {
    store(to, spread_bits(value) | CONTINUATION_BITS);
    to[8] = static_cast<uint8_t>(value >> 56);  // bit 63 becomes the bit that means that a tenth byte follows
    if (size == 10) to[9] = 1;
  }
  return to + size;
}

// Returns the bits that are set in any of the numbers, which need not be aligned.
RM_INLINE uint64_t combined_bits(const uint8_t *numbers, int64_t count) {
  uint64_t bits = 0;
  for (int64_t i = 0; i < count; i++) bits |= load<uint64_t>(numbers + 8 * i);
  return bits;
}

// Returns the size of numbers as varints.
RM_INLINE int64_t varints_bytes(const uint8_t *numbers, int64_t count) {
  if (combined_bits(numbers, count) < 0x80) return count;
  int64_t size = 0;
  for (int64_t i = 0; i < count; i++) size += varint_bytes(load<uint64_t>(numbers + 8 * i));
  return size;
}

// Writes numbers of at most 28 bits, which are varints of at most four bytes. A first loop, which compilers vectorise,
// computes the words of a block. A second one stores each word over the unused end of the word before it.
RM_INLINE uint8_t *put_short_varints(uint8_t *to, const uint8_t *numbers, int64_t count) {
  constexpr int64_t BLOCK_SIZE = 64;
  uint32_t words[BLOCK_SIZE], sizes[BLOCK_SIZE];
  for (int64_t first = 0; first < count; first += BLOCK_SIZE) {
    const int64_t block_size = min(count - first, BLOCK_SIZE);
    for (int64_t i = 0; i < block_size; i++) {
      uint32_t value = load<uint32_t>(numbers + 8 * (first + i));
      sizes[i] = 1 + (value >= 1 << 7) + (value >= 1 << 14) + (value >= 1 << 21);
      value = (value & 0x3FFF) | (value & 0xFFFC000) << 2;
      value = (value & 0x007F007F) | (value & 0x3F803F80) << 1;
      words[i] = value | 0x808080u >> (32 - 8 * sizes[i]);
    }
    for (int64_t i = 0; i < block_size; to += sizes[i++]) store(to, words[i]);
  }
  return to;
}

// Writes numbers as varints. Returns the position after them. Up to 7 bytes after them are overwritten.
RM_INLINE uint8_t *put_varints(uint8_t *to, const uint8_t *numbers, int64_t count) {
  const uint64_t bits = combined_bits(numbers, count);
  if (bits < 0x80) {  // one byte each
    for (int64_t i = 0; i < count; i++) to[i] = numbers[8 * i];
    return to + count;
  }
  if (bits >> 28 == 0) return put_short_varints(to, numbers, count);
  for (int64_t i = 0; i < count; i++) to = put_varint(to, load<uint64_t>(numbers + 8 * i));
  return to;
}

}  // namespace rm
