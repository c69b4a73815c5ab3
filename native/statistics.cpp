// What statistics count of numbers and texts: exact sums, ordered bins, hashes of values and a table of counts by hash.
#include "common.h"

namespace rm {
namespace {

using Wide = unsigned __int128;

constexpr int DIGITS = RM_SUM_DIGITS, SQUARE_DIGITS = RM_SQUARE_DIGITS;  // of 32 bits

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

// Sorts by the bytes in which keys differ.
void radix_sort(uint64_t *keys, uint64_t *room, int64_t size) {
  uint32_t counts[8][256] = {};
  for (int64_t i = 0; i < size; i++)
    for (int byte = 0; byte < 8; byte++) counts[byte][keys[i] >> (8 * byte) & 255]++;
  uint64_t *from = keys, *to = room;
  for (int byte = 0; byte < 8 && size > 0; byte++) {
    uint32_t *places = counts[byte], sum = 0;
    if (places[from[0] >> (8 * byte) & 255] == size) continue;
    for (int i = 0; i < 256; i++) {
      const uint32_t count = places[i];
      places[i] = sum;
      sum += count;
    }
    for (int64_t i = 0; i < size; i++) to[places[from[i] >> (8 * byte) & 255]++] = from[i];
    uint64_t *other = from;
    from = to;
    to = other;
  }
  if (from != keys) memcpy(keys, from, static_cast<size_t>(size) * sizeof *keys);
}

// The finaliser of SplitMix64, a bijection but for 0, which stands for none.
RM_INLINE uint64_t mixed(uint64_t word) {
  word += 0x9E3779B97F4A7C15;
  word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9;
  word = (word ^ word >> 27) * 0x94D049BB133111EB;
  word ^= word >> 31;
  return word ? word : 1;
}

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
  return mixed(folded(one ^ P2, other ^ state) ^ size * P3);
}

RM_INLINE bool is_power_of_two(int64_t size) { return size > 0 && (size & (size - 1)) == 0; }

}  // namespace
}  // namespace rm

using namespace rm;

RM_EXPORT int64_t rm_count_floats(const double *values, int64_t values_size, rm_float_facts *facts, uint32_t *sum,
                                  int64_t sum_size, uint32_t *squares, int64_t squares_size, uint64_t *keys,
                                  int64_t keys_size) {
  if (sum_size != DIGITS || squares_size != SQUARE_DIGITS || keys_size < values_size || values_size > INT32_MAX)
    return RM_BOUNDS;
  Sum<DIGITS> total;
  Sum<SQUARE_DIGITS> square_total;
  int64_t size = 0;
  for (int64_t i = 0; i < values_size; i++) {
    const double value = values[i] + 0.0;  // -0.0 becomes 0.0
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int exponent = static_cast<int>(bits >> 52 & 0x7FF);
    uint64_t mantissa = bits & ((1ull << 52) - 1);
    if (exponent == 0x7FF) {
      (mantissa ? facts->nans : bits & SIGN ? facts->minus_infinities : facts->plus_infinities)++;
      continue;
    }
    keys[size++] = ordered(bits);
    if (value < facts->least) facts->least = value;
    if (value > facts->most) facts->most = value;
    if (exponent) {
      mantissa |= 1ull << 52;
      exponent--;
    } else if (mantissa == 0) {
      facts->zeros++;
      continue;
    }
    total.add<3>(mantissa, exponent, static_cast<int64_t>(bits) >> 63);
    square_total.add<5>(static_cast<Wide>(mantissa) * mantissa, 2 * exponent, 0);
  }
  total.write(sum);
  square_total.write(squares);
  return size;
}

RM_EXPORT int64_t rm_sum_integers(const uint64_t *values, int64_t values_size, int64_t is_signed, uint32_t *sum,
                                  int64_t sum_size, uint32_t *squares, int64_t squares_size) {
  if (sum_size < 4 || squares_size < 6 || values_size > INT32_MAX) return RM_BOUNDS;
  Sum<4> total;
  Sum<6> square_total;
  for (int64_t i = 0; i < values_size; i++) {
    const int64_t sign = is_signed ? static_cast<int64_t>(values[i]) >> 63 : 0;
    const uint64_t size = (values[i] ^ static_cast<uint64_t>(sign)) - static_cast<uint64_t>(sign);
    total.add<3>(size, 0, sign);
    square_total.add<5>(static_cast<Wide>(size) * size, 0, 0);
  }
  memset(sum, 0, static_cast<size_t>(sum_size) * sizeof *sum);
  memset(squares, 0, static_cast<size_t>(squares_size) * sizeof *squares);
  total.write(sum);
  square_total.write(squares);
  return values_size;
}

RM_EXPORT int64_t rm_sort_keys(uint64_t *keys, int64_t keys_size, uint64_t *room, int64_t room_size) {
  if (room_size < keys_size || keys_size > INT32_MAX) return RM_BOUNDS;
  radix_sort(keys, room, keys_size);
  return keys_size;
}

RM_EXPORT int64_t rm_merge_bins(const uint64_t *keys, int64_t keys_size, const int64_t *counts, int64_t counts_size,
                                const uint64_t *others, int64_t others_size, const int64_t *other_counts,
                                int64_t other_counts_size, int64_t most, int64_t level, uint64_t *out,
                                int64_t out_size, int64_t *out_counts, int64_t out_counts_size) {
  if (counts_size != keys_size || (other_counts && other_counts_size != others_size) || most < 1 || level < 0 ||
      level > 63 || out_size < keys_size + others_size || out_counts_size < out_size)
    return RM_BOUNDS;
  int64_t size = 0, apart[65] = {};  // how many neighbours differ in so many low bits
  const auto put = [&](uint64_t key, int64_t count) {
    key = key >> level << level;
    if (size > 0 && out[size - 1] == key) {
      out_counts[size - 1] += count;
      return;
    }
    if (size > 0) apart[64 - leading_zeros(out[size - 1] ^ key)]++;
    out[size] = key, out_counts[size++] = count;
  };
  for (int64_t i = 0, j = 0; i < keys_size || j < others_size;) {
    if (j == others_size || (i < keys_size && keys[i] <= others[j])) {
      put(keys[i], counts[i]);
      i++;
    } else {
      put(others[j], other_counts ? other_counts[j] : 1);
      j++;
    }
  }
  int64_t left = size;
  for (int64_t bits = 0; left > most && bits < 64; bits++) left -= apart[level = bits];
  if (size > most) {
    const int64_t all = size;
    size = 0;
    memset(apart, 0, sizeof apart);
    for (int64_t i = 0; i < all; i++) put(out[i], out_counts[i]);
  }
  return size << 6 | level;
}

RM_EXPORT int64_t rm_hash_numbers(const uint64_t *bits, int64_t bits_size, uint64_t *out, int64_t out_size) {
  if (out_size < bits_size) return RM_BOUNDS;
  for (int64_t i = 0; i < bits_size; i++) out[i] = mixed(bits[i]);
  return bits_size;
}

RM_EXPORT int64_t rm_hash_texts(const uint8_t *data, int64_t data_size, const int64_t *starts, int64_t starts_size,
                                const int64_t *ends, int64_t ends_size, uint64_t *out, int64_t out_size) {
  if (ends_size != starts_size || out_size < starts_size) return RM_BOUNDS;
  for (int64_t i = 0; i < starts_size; i++) {
    if (starts[i] < 0 || ends[i] < starts[i] || ends[i] > data_size) return RM_BOUNDS;
    out[i] = hash_text(data + starts[i], static_cast<uint64_t>(ends[i] - starts[i]));
  }
  return starts_size;
}

RM_EXPORT int64_t rm_count_hashes(const uint64_t *hashes, int64_t hashes_size, int64_t first, uint64_t threshold,
                                  int64_t used, uint64_t *slots, int64_t slots_size, int64_t *counts,
                                  int64_t counts_size, int32_t *places, int64_t places_size) {
  const int64_t most = slots_size / 4 * 3;
  if (!is_power_of_two(slots_size) || counts_size != slots_size || places_size != slots_size || first < 0 ||
      used < 0 || used > most || hashes_size > INT32_MAX)
    return RM_BOUNDS;
  const uint64_t mask = static_cast<uint64_t>(slots_size) - 1;
  for (int64_t i = first; i < hashes_size; i++) {
    const uint64_t one = hashes[i];
    if (one > threshold || one == 0) continue;
    uint64_t at = one & mask;
    while (slots[at] != one && slots[at] != 0) at = (at + 1) & mask;
    if (slots[at] == 0) {
      if (used == most) return used << 32 | i;
      slots[at] = one, places[at] = static_cast<int32_t>(i);
      used++;
    }
    counts[at]++;
  }
  return used << 32 | hashes_size;
}

RM_EXPORT int64_t rm_put_hashes(const uint64_t *hashes, int64_t hashes_size, const int64_t *some, int64_t some_size,
                                const int32_t *firsts, int64_t firsts_size, uint64_t *slots, int64_t slots_size,
                                int64_t *counts, int64_t counts_size, int32_t *places, int64_t places_size) {
  if (!is_power_of_two(slots_size) || counts_size != slots_size || places_size != slots_size ||
      some_size != hashes_size || firsts_size != hashes_size || hashes_size >= slots_size)
    return RM_BOUNDS;
  const uint64_t mask = static_cast<uint64_t>(slots_size) - 1;
  for (int64_t i = 0; i < hashes_size; i++) {
    uint64_t at = hashes[i] & mask;
    for (int64_t tries = 0; slots[at] != 0; at = (at + 1) & mask)
      if (++tries == slots_size) return RM_BOUNDS;
    slots[at] = hashes[i], counts[at] = some[i], places[at] = firsts[i];
  }
  return hashes_size;
}
