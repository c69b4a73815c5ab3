// Packed lists of varints to int64: four at once in the lanes of a vector register.
//
// The method of Plaisance, Kurz and Lemire, "Vectorized VByte Decoding" (2015): the go-on bits of the next twelve bytes
// are the number of a row of a table, which says how many varints of up to four bytes end in them; a byte shuffle brings
// each of these to a lane of its own.
#ifndef RECORDMILL_VARINTS_H
#define RECORDMILL_VARINTS_H

#include "wire.h"

namespace rm {

// How many varints end in [at, end): one at each byte without the bit that says that it goes on.
RM_INLINE int64_t count_varints(const uint8_t *at, const uint8_t *end, const uint8_t *limit) {
  int64_t count = 0;
  for (; at < end && limit - at >= BLOCK; at += BLOCK) {
    const uint64_t stops = ~high_mask(at);
    count += __builtin_popcountll(end - at >= BLOCK ? stops : stops << (BLOCK - (end - at)));
  }
  for (; at < end; at++) count += *at < 0x80;
  return count;
}

#if defined(__SSSE3__)

constexpr int LOOKED_AT_BYTES = 12, LANES = 4, LANE_BYTES = 4, LENGTHS = LANE_BYTES + 1;

// For each pattern of go-on bits, which varints that fit lanes end in them: their number, their bytes, their shuffle.
// The shuffles are numbered by the lengths of the varints.
struct VarintTable {
  struct Row {
    uint8_t count, bytes;
    uint16_t shuffle;
  } rows[1 << LOOKED_AT_BYTES];
  uint8_t shuffles[LENGTHS * LENGTHS * LENGTHS * LENGTHS][LANES * LANE_BYTES];

  constexpr VarintTable() : rows(), shuffles() {
    for (int bits = 0; bits < 1 << LOOKED_AT_BYTES; bits++) {
      int begin = 0, count = 0, number = 0;
      for (int at = 0, place = 1; at < LOOKED_AT_BYTES && count < LANES && at - begin < LANE_BYTES; at++) {
        if ((bits >> at & 1) != 0) continue;
        number += place * (at + 1 - begin);
        begin = at + 1;
        place *= LENGTHS;
        count++;
      }
      rows[bits] = {static_cast<uint8_t>(count), static_cast<uint8_t>(begin), static_cast<uint16_t>(number)};
    }
    for (int number = 0; number < LENGTHS * LENGTHS * LENGTHS * LENGTHS; number++) {
      int begin = 0;
      for (int lane = 0, lengths = number; lane < LANES; lane++, lengths /= LENGTHS) {
        for (int i = 0; i < LANE_BYTES; i++)
          shuffles[number][LANE_BYTES * lane + i] = static_cast<uint8_t>(i < lengths % LENGTHS ? begin + i : 0x80);  // 0x80: zero
        begin += lengths % LENGTHS;
      }
    }
  }
};

inline constexpr VarintTable VARINT_TABLE;

// Four varints as int64. Reads 16 bytes.
RM_INLINE void put_lanes(int64_t *to, const uint8_t *at, const uint8_t *shuffle) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(at));
  __m128i lanes = _mm_shuffle_epi8(bytes, _mm_loadu_si128(reinterpret_cast<const __m128i *>(shuffle)));
  const auto joined = [](__m128i word, int low, int high, int by) {  // groups of bits, moved together
    return _mm_or_si128(_mm_and_si128(word, _mm_set1_epi32(low)), _mm_srli_epi32(_mm_and_si128(word, _mm_set1_epi32(high)), by));
  };
  lanes = joined(joined(lanes, 0x007F007F, 0x7F007F00, 1), 0x00003FFF, 0x3FFF0000, 2);
  const __m128i zero = _mm_setzero_si128();
  _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm_unpacklo_epi32(lanes, zero));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(to + 2), _mm_unpackhi_epi32(lanes, zero));
}

// Reads values up to one that does not fit a lane; gives how many, and moves `at`. Where the last varint of a window of
// 64 bytes ends, and how many there are, is told by its bits alone: so the processor begins the next window while this
// one is read.
RM_INLINE int64_t read_lanes(const uint8_t *&at, const uint8_t *limit, int64_t *to, int64_t count) {
  int64_t i = 0;
  while (i < count && limit - at >= BLOCK + LANES * LANE_BYTES) {
    const uint64_t bits = high_mask(at);
    const int64_t last = min(i + __builtin_popcountll(~bits), count), window = BLOCK - leading_zeros(~bits);
    if (bits == 0) {
      for (int64_t first = 0; i < last; i += LANES * LANE_BYTES, first += LANES * LANE_BYTES)
        for (int64_t k = 0; k < LANES * LANE_BYTES; k++) to[i + k] = at[first + k];
    }
    for (int64_t used = 0; i < last;) {
      const VarintTable::Row row = VARINT_TABLE.rows[(bits >> used) & ((1 << LOOKED_AT_BYTES) - 1)];
      if (row.count == 0) {
        at += used;
        return i;
      }
      put_lanes(to + i, at + used, VARINT_TABLE.shuffles[row.shuffle]);
      i += row.count;
      used += row.bytes;
    }
    if (window == 0) break;
    i = last;
    at += window;
  }
  return min(i, count);
}

#else
RM_INLINE int64_t read_lanes(const uint8_t *&, const uint8_t *, int64_t *, int64_t) { return 0; }
#endif

// Reads `count` varints of [at, end), in which so many end; gives how many it read before one that is too long. Writes
// up to VARINT_ROOM values after them. Where some are too long for a lane, the next ones may be, too.
RM_INLINE int64_t read_varints(const uint8_t *at, const uint8_t *end, const uint8_t *limit, int64_t *to, int64_t count) {
  constexpr int64_t LONG_RUN = 16;
  for (int64_t i = 0; i < count;) {
    i += read_lanes(at, limit, to + i, count - i);
    for (const int64_t stop = min(i + LONG_RUN, count); i < stop; i++) {
      const Varint next = read_varint(at, end, limit);
      if (next.after == nullptr) return i;
      to[i] = static_cast<int64_t>(next.value);
      at = next.after;
    }
  }
  return count;
}

}  // namespace rm

#endif
