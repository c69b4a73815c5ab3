// The order of records: hashes (SipHash-2-4), permutations of their numbers, and the rows that they are packed in.
#include "recordmill.h"

namespace rm {
namespace {

// Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012; v0 to v3 are its words.
struct SipHash {
  uint64_t v0, v1, v2, v3;

  RM_INLINE SipHash(uint64_t k0, uint64_t k1)
      : v0(k0 ^ 0x736F6D6570736575u), v1(k1 ^ 0x646F72616E646F6Du), v2(k0 ^ 0x6C7967656E657261u),
        v3(k1 ^ 0x7465646279746573u) {}

  static RM_INLINE uint64_t rotate(uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

  RM_INLINE void round() {
    v0 += v1, v1 = rotate(v1, 13) ^ v0, v0 = rotate(v0, 32);
    v2 += v3, v3 = rotate(v3, 16) ^ v2;
    v0 += v3, v3 = rotate(v3, 21) ^ v0;
    v2 += v1, v1 = rotate(v1, 17) ^ v2, v2 = rotate(v2, 32);
  }

  RM_INLINE void absorb(uint64_t word) {
    v3 ^= word;
    round(), round();
    v0 ^= word;
  }

  // The hash of some bytes.
  RM_INLINE uint64_t of(const uint8_t *bytes, int64_t length) {
    int64_t at = 0;
    for (; length - at >= 8; at += 8) absorb(load<uint64_t>(bytes + at));
    uint64_t word = static_cast<uint64_t>(length) << 56;
    for (int shift = 0; at < length; at++, shift += 8) word |= uint64_t{bytes[at]} << shift;
    absorb(word);
    v2 ^= 0xFF;
    round(), round(), round(), round();
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

// A Feistel network over the bits that `size` needs; where it leads out of the size it is followed until it is back.
struct Permutation {
  uint64_t key, size;
  int low_bits;
  uint64_t low, high;  // masks of the halves

  Permutation(uint64_t key, uint64_t size) : key(key), size(size) {
    constexpr int LEAST_BITS = 6;  // halves of 3 bits and more, so that sets of few numbers are mixed as well
    int bits = LEAST_BITS;
    while (bits < 63 && uint64_t{1} << bits < size) bits++;
    low_bits = bits / 2;
    low = (uint64_t{1} << low_bits) - 1;
    high = (uint64_t{1} << (bits - low_bits)) - 1;
  }

  RM_INLINE uint64_t operator[](uint64_t at) const {
    constexpr int ROUNDS = 3;  // of two half-rounds each; four of random functions are the least that is no weakness
    do {
      uint64_t left = at >> low_bits, right = at & low, word = key;
      for (int round = 0; round < ROUNDS; round++) {
        left = (left ^ mixed((word += GOLDEN) ^ right)) & high;
        right = (right ^ mixed((word += GOLDEN) ^ left)) & low;
      }
      at = left << low_bits | right;
    } while (at >= size);
    return at;
  }
};

}  // namespace

int64_t rm_hash_spans(Span<const uint64_t> key0, Span<const uint64_t> key1, Span<const uint32_t> which, int64_t first,
                      ByteSpan data, IntSpan starts, IntSpan lengths, Span<uint64_t> out) {
  const int64_t count = starts.size;
  if (key1.size != key0.size || (which && which.size != count) || lengths.size != count || out.size != count) return BOUNDS;
  for (int64_t i = 0; i < count; i++) {
    const int64_t key = which ? which[i] - first : 0;
    if (!key0.holds(key) || !data.holds(starts[i], lengths[i])) return BOUNDS;
    out[i] = SipHash(key0[key], key1[key]).of(data.data + starts[i], lengths[i]);
  }
  return 0;
}

int64_t rm_permute(IntSpan numbers, IntSpan stretches, IntSpan edges, uint64_t key, Span<int64_t> out) {
  if (stretches.size != numbers.size || out.size != numbers.size) return BOUNDS;
  int64_t last = -1, start = 0;
  Permutation permutation(key, 0);
  for (int64_t i = 0; i < numbers.size; i++) {
    const int64_t stretch = stretches[i];
    if (stretch < 0 || stretch >= edges.size - 1) return BOUNDS;
    if (numbers[i] < edges[stretch] || numbers[i] >= edges[stretch + 1]) return BOUNDS;
    if (stretch != last) {
      last = stretch, start = edges[stretch];
      const uint64_t own = mixed(key + static_cast<uint64_t>(stretch + 1) * GOLDEN);
      permutation = Permutation(own, static_cast<uint64_t>(edges[stretch + 1] - start));
    }
    out[i] = start + static_cast<int64_t>(permutation[static_cast<uint64_t>(numbers[i] - start)]);
  }
  return 0;
}

int64_t rm_pack_rows(IntSpan lengths, IntSpan limits, Span<int64_t> left, Span<int64_t> places, Span<int64_t> ends) {
  const int64_t records = places.size, features = limits.size;
  if (features < 1 || left.size < features || left.size % features || ends.size != records) return BOUNDS;
  if (lengths.size % features || lengths.size / features != records) return BOUNDS;
  const int64_t rows = left.size / features;
  const auto empty_rows = [&] {
    for (int64_t i = 0; i < left.size; i++) left[i] = limits[i % features];
  };
  const auto has_room = [&](int64_t row, int64_t record) {
    bool fits = true;
    for (int64_t i = 0; i < features; i++) fits &= left[row * features + i] >= lengths[i * records + record];
    return fits;
  };
  int64_t steps = 0;
  empty_rows();
  for (int64_t record = 0; record < records; record++) {
    int64_t row = 0;
    while (row < rows && !has_room(row, record)) row++;
    if (row == rows) {
      ends[steps++] = record;
      empty_rows();
      row = 0;
      if (!has_room(row, record)) return BOUNDS;
    }
    for (int64_t i = 0; i < features; i++) left[row * features + i] -= lengths[i * records + record];
    places[record] = steps * rows + row;
  }
  return steps;
}

}  // namespace rm
