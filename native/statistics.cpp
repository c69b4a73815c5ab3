// What statistics count of numbers and texts: exact sums, ordered bins, hashes of values and a table of counts by hash.
#include "recordmill.h"

namespace rm {
namespace {

using Wide = unsigned __int128;

// A sum of large integers. Digits take up to 2^31 numbers before they must be carried.
template <int SIZE>
struct Sum {
  int64_t digits[SIZE] = {};

  // Adds ±value * 2^shift, of which value has at most PARTS - 1 digits.
  template <int PARTS>
  RM_INLINE void add(Wide value, int shift, int64_t sign) {
    const int part = shift >> 5, bits = shift & 31;
    const uint32_t first = static_cast<uint32_t>(value << bits);
    value >>= 32 - bits;
    digits[part] += (static_cast<int64_t>(first) ^ sign) - sign;
    for (int i = 1; i < PARTS; i++, value >>= 32)
      digits[part + i] += (static_cast<int64_t>(static_cast<uint32_t>(value)) ^ sign) - sign;
  }
  // As a number in two's complement.
  void write(uint32_t *out) const {
    int64_t carry = 0;
    for (int i = 0; i < SIZE; i++) {
      carry += digits[i];
      out[i] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
  }
};

constexpr uint64_t SIGN = 1ull << 63;

// Bits of a float64 that are in the order of the values.
RM_INLINE uint64_t ordered(uint64_t bits) { return bits & SIGN ? ~bits : bits | SIGN; }

RM_INLINE uint64_t folded(uint64_t one, uint64_t other) {
  const Wide product = static_cast<Wide>(one) * other;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Odd numbers with as many ones as zeros.
constexpr uint64_t P0 = -0x5F89E29B87429BD1, P1 = (-0x18EE50C4A4BB9F25) | 1, P2 = 0x589965CC75374CC3,
                   P3 = 0x1D8E4E27C47D124F;

// In the manner of wyhash (Wang Yi, 2019): 16 bytes at each step, multiplied to 128 bits of which halves are folded.
uint64_t hash_text(const uint8_t *at, uint64_t size) {
  const uint8_t *end = at + size;
  const auto word = [](const uint8_t *place) { return load<uint64_t>(place); };
  uint64_t state = P0 ^ size, one = 0, other = 0;
  if (size > 64) {  // four lanes, which wait for none of the others
    uint64_t second = state, third = state, fourth = state;
    for (; end - at > 64; at += 64) {
      state = folded(word(at) ^ P1, word(at + 8) ^ state);
      second = folded(word(at + 16) ^ P2, word(at + 24) ^ second);
      third = folded(word(at + 32) ^ P3, word(at + 40) ^ third);
      fourth = folded(word(at + 48) ^ P0, word(at + 56) ^ fourth);
    }
    state = folded(state ^ P1, second) ^ folded(third ^ P2, fourth);
  }
  for (; end - at > 16; at += 16) state = folded(word(at) ^ P1, word(at + 8) ^ state);
  if (size >= 16) {
    one = word(end - 16), other = word(end - 8);
  } else if (size >= 8) {
    one = word(at), other = word(end - 8);
  } else if (size >= 4) {
    one = load<uint32_t>(at), other = load<uint32_t>(end - 4);
  } else if (size > 0) {
    one = static_cast<uint64_t>(at[0]) << 16 | static_cast<uint64_t>(at[size >> 1]) << 8 | end[-1];
  }
  return max(mixed((folded(one ^ P2, other ^ state) ^ size * P3) + GOLDEN), uint64_t{1});  // 0 stands for none
}

}  // namespace

int64_t rm_count_floats(Span<const double> values, FloatFacts &facts, Span<uint32_t> sum, Span<uint32_t> squares,
                        Span<uint64_t> keys) {
  if (sum.size != SUM_DIGITS || squares.size != SQUARE_DIGITS || keys.size < values.size || values.size > INT32_MAX)
    return BOUNDS;
  Sum<SUM_DIGITS> total;
  Sum<SQUARE_DIGITS> square_total;
  int64_t size = 0;
  for (int64_t i = 0; i < values.size; i++) {
    const double value = values[i] + 0.0;  // -0.0 becomes 0.0
    const uint64_t bits = load<uint64_t>(reinterpret_cast<const uint8_t *>(&value));
    int exponent = static_cast<int>(bits >> 52 & 0x7FF);
    uint64_t mantissa = bits & ((1ull << 52) - 1);
    if (exponent == 0x7FF) {
      (mantissa ? facts.nans : bits & SIGN ? facts.minus_infinities : facts.plus_infinities)++;
      continue;
    }
    keys[size++] = ordered(bits);
    if (value < facts.least) facts.least = value;
    if (value > facts.most) facts.most = value;
    if (exponent) {
      mantissa |= 1ull << 52;
      exponent--;
    } else if (mantissa == 0) {
      facts.zeros++;
      continue;
    }
    total.add<3>(mantissa, exponent, static_cast<int64_t>(bits) >> 63);
    square_total.add<5>(static_cast<Wide>(mantissa) * mantissa, 2 * exponent, 0);
  }
  total.write(sum.data);
  square_total.write(squares.data);
  return size;
}

int64_t rm_merge_bins(Span<const uint64_t> keys, IntSpan counts, Span<const uint64_t> others, IntSpan other_counts,
                      BinLimits &limits, Span<uint8_t> levels, Span<uint64_t> out, Span<int64_t> out_counts) {
  constexpr int SHIFT = 50;
  static_assert(BIN_RANGES == uint64_t{1} << (64 - SHIFT), "a range is what the highest bits say");
  if (counts.size != keys.size || (other_counts && other_counts.size != others.size)) return BOUNDS;
  if (limits.most < 1 || limits.cap < 1 || levels.size != BIN_RANGES) return BOUNDS;
  if (out.size < keys.size + others.size || out_counts.size < out.size) return BOUNDS;
  int64_t size = 0;
  const auto put = [&](uint64_t key, int64_t count) {
    const int level = min<int>(levels[key >> SHIFT], SHIFT);
    key = key >> level << level;
    if (size > 0 && out[size - 1] == key) out_counts[size - 1] += count;
    else out[size] = key, out_counts[size++] = count;
  };
  for (int64_t i = 0, j = 0; i < keys.size || j < others.size;) {
    const bool is_own = j == others.size || (i < keys.size && keys[i] <= others[j]);
    put(is_own ? keys[i] : others[j], is_own ? counts[i] : other_counts ? other_counts[j] : 1);
    (is_own ? i : j)++;
  }
  const auto visit_ranges = [&](auto visit) {
    for (int64_t first = 0, end = 0; first < size; first = end) {
      const uint64_t range = out[first] >> SHIFT;
      for (end = first + 1; end < size && out[end] >> SHIFT == range; end++) continue;
      visit(levels[range], first, end);
    }
  };
  // The bound of bins by which the cap is chosen only grows with the values: it is the same in whatever order they come.
  for (;; limits.cap /= 2) {
    int64_t bound = 0;
    visit_ranges([&](uint8_t level, int64_t first, int64_t end) {
      bound += level > 0 ? limits.cap : min(end - first, limits.cap);
    });
    if (bound <= limits.most || limits.cap == 1) break;
  }
  bool is_coarser = false;
  visit_ranges([&](uint8_t &level, int64_t first, int64_t end) {
    int64_t left = end - first, apart[65] = {};  // how many neighbours differ in so many low bits
    if (left <= limits.cap) return;
    for (int64_t i = first + 1; i < end; i++) apart[64 - leading_zeros(out[i - 1] ^ out[i])]++;
    for (is_coarser = true; left > limits.cap && level < SHIFT;) left -= apart[++level];
  });
  const int64_t all = is_coarser ? size : 0;
  if (is_coarser) size = 0;
  for (int64_t i = 0; i < all; i++) put(out[i], out_counts[i]);
  return size;
}

int64_t rm_hash_texts(ByteSpan data, IntSpan starts, IntSpan ends, Span<uint64_t> out) {
  if (ends.size != starts.size || out.size < starts.size) return BOUNDS;
  for (int64_t i = 0; i < starts.size; i++) {
    if (!data.holds(starts[i], ends[i] - starts[i])) return BOUNDS;
    out[i] = hash_text(data.data + starts[i], static_cast<uint64_t>(ends[i] - starts[i]));
  }
  return starts.size;
}

int64_t rm_count_hashes(Span<const uint64_t> hashes, int64_t first, uint64_t threshold, int64_t used,
                        Span<uint64_t> slots, Span<int64_t> counts, Span<int32_t> places) {
  const int64_t most = slots.size / 4 * 3;
  if (slots.size < 1 || (slots.size & (slots.size - 1))) return BOUNDS;
  if (counts.size != slots.size || places.size != slots.size || hashes.size > INT32_MAX) return BOUNDS;
  if (first < 0 || used < 0 || used > most) return BOUNDS;
  const uint64_t mask = static_cast<uint64_t>(slots.size) - 1;
  for (int64_t i = first; i < hashes.size; i++) {
    const uint64_t one = hashes[i];
    if (one > threshold || one == 0) continue;
    uint64_t at = one & mask;
    for (int64_t tries = 0; slots[at] != one && slots[at] != 0; at = (at + 1) & mask)
      if (++tries == slots.size) return BOUNDS;
    if (slots[at] == 0) {
      if (used == most) return used << 32 | i;
      slots[at] = one, places[at] = static_cast<int32_t>(i);
      used++;
    }
    counts[at]++;
  }
  return used << 32 | hashes.size;
}

}  // namespace rm
