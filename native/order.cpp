// The order of records: hashes (SipHash-2-4), permutations of numbers, and packing into rows.
#include "recordmill.h"

namespace rm {
namespace {

// Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012. v0 to v3 are the words of its state.
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

  // Returns the hash of `bytes`. Can be called once.
  RM_INLINE uint64_t hash(const uint8_t *bytes, int64_t length) {
    int64_t i = 0;
    for (; length - i >= 8; i += 8) absorb(load<uint64_t>(bytes + i));
    uint64_t word = static_cast<uint64_t>(length) << 56;  // the last word holds the length and the bytes that are left
    for (int shift = 0; i < length; i++, shift += 8) word |= uint64_t{bytes[i]} << shift;
    absorb(word);
    v2 ^= 0xFF;
    round(), round(), round(), round();
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

// A pseudorandom permutation of [0, size): a Feistel network over as many bits as `size` needs. If it leads to a number
// beyond the size, it is applied again until the result is inside (cycle walking), which keeps it a permutation.
struct Permutation {
  uint64_t key, size;
  int low_bits;
  uint64_t low, high;  // masks of the halves

  Permutation(uint64_t key, uint64_t size) : key(key), size(size) {
    constexpr int MIN_BITS = 6;  // halves of at least 3 bits, so that few numbers are mixed as well
    int bits = MIN_BITS;
    while (bits < 63 && uint64_t{1} << bits < size) bits++;
    low_bits = bits / 2;
    low = (uint64_t{1} << low_bits) - 1;
    high = (uint64_t{1} << (bits - low_bits)) - 1;
  }

  RM_INLINE uint64_t operator[](uint64_t number) const {
    constexpr int ROUNDS = 3;  // of two half-rounds each. Luby and Rackoff prove security from four half-rounds on
    do {
      uint64_t left = number >> low_bits, right = number & low, word = key;
      for (int round = 0; round < ROUNDS; round++) {
        left = (left ^ mixed((word += GOLDEN) ^ right)) & high;
        right = (right ^ mixed((word += GOLDEN) ^ left)) & low;
      }
      number = left << low_bits | right;
    } while (number >= size);
    return number;
  }
};

// Returns the last range that begins at `number` or before it. `edges` are not empty, and the first range does so. The
// search has no branches, because the processor can't predict them.
RM_INLINE int64_t find_range(IntSpan edges, int64_t number) {
  int64_t range = 0;
  for (int64_t rest = edges.size; rest > 1;) {
    const int64_t half = rest / 2;
    range = edges[range + half] <= number ? range + half : range;
    rest -= half;
  }
  return range;
}

}  // namespace

int64_t rm_hash_spans(Span<const uint64_t> key0, Span<const uint64_t> key1, Span<const uint32_t> key_ids,
                      int64_t first_key, ByteSpan data, IntSpan starts, IntSpan lengths, Span<uint64_t> hashes) {
  const int64_t count = starts.size;
  if (key1.size != key0.size || lengths.size != count || hashes.size != count) return BOUNDS;
  if (key_ids && key_ids.size != count) return BOUNDS;
  for (int64_t i = 0; i < count; i++) {
    const int64_t key = key_ids ? key_ids[i] - first_key : 0;
    if (!key0.holds(key) || !data.holds(starts[i], lengths[i])) return BOUNDS;
    hashes[i] = SipHash(key0[key], key1[key]).hash(data.data + starts[i], lengths[i]);
  }
  return 0;
}

int64_t rm_mix_words(Span<const uint64_t> words, Span<uint64_t> out) {
  if (out.size != words.size) return BOUNDS;
  for (int64_t i = 0; i < words.size; i++) out[i] = mixed(words[i]);
  return 0;
}

int64_t rm_find_ranges(IntSpan numbers, IntSpan edges, Span<int64_t> range_ids) {
  if (range_ids.size != numbers.size || (numbers.size && edges.size < 2)) return BOUNDS;
  for (int64_t i = 0; i < numbers.size; i++) {
    if (numbers[i] < edges[0] || numbers[i] >= edges[edges.size - 1]) return BOUNDS;
    range_ids[i] = find_range(edges, numbers[i]);
  }
  return 0;
}

int64_t rm_permute(IntSpan numbers, IntSpan range_ids, IntSpan edges, uint64_t key, Span<int64_t> out) {
  if (range_ids.size != numbers.size || out.size != numbers.size) return BOUNDS;
  int64_t last_range = -1, begin = 0;
  Permutation permutation(key, 0);
  for (int64_t i = 0; i < numbers.size; i++) {
    const int64_t range = range_ids[i];
    if (range < 0 || range >= edges.size - 1) return BOUNDS;
    if (numbers[i] < edges[range] || numbers[i] >= edges[range + 1]) return BOUNDS;
    if (range != last_range) {  // numbers of one range mostly come together
      last_range = range, begin = edges[range];
      const uint64_t range_key = mixed(key + static_cast<uint64_t>(range + 1) * GOLDEN);
      permutation = Permutation(range_key, static_cast<uint64_t>(edges[range + 1] - begin));
    }
    out[i] = begin + static_cast<int64_t>(permutation[static_cast<uint64_t>(numbers[i] - begin)]);
  }
  return 0;
}

int64_t rm_pack_rows(IntSpan lengths, IntSpan limits, Span<int64_t> free, Span<int64_t> row_ids,
                     Span<int64_t> step_ends) {
  const int64_t records = row_ids.size, features = limits.size;
  if (features < 1 || free.size < features || free.size % features || step_ends.size != records) return BOUNDS;
  if (lengths.size % features || lengths.size / features != records) return BOUNDS;
  const int64_t rows = free.size / features;
  const auto empty_rows = [&] {
    for (int64_t i = 0; i < free.size; i++) free[i] = limits[i % features];
  };
  const auto has_room = [&](int64_t row, int64_t record) {
    bool fits = true;
    for (int64_t i = 0; i < features; i++) fits &= free[row * features + i] >= lengths[i * records + record];
    return fits;
  };
  int64_t steps = 0;
  empty_rows();
  for (int64_t record = 0; record < records; record++) {
    int64_t row = 0;
    while (row < rows && !has_room(row, record)) row++;
    if (row == rows) {
      step_ends[steps++] = record;
      empty_rows();
      row = 0;
      if (!has_room(row, record)) return BOUNDS;  // the record alone is longer than a row
    }
    for (int64_t i = 0; i < features; i++) free[row * features + i] -= lengths[i * records + record];
    row_ids[record] = steps * rows + row;
  }
  return steps;
}

}  // namespace rm
