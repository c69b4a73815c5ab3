// What statistics count of numbers and texts: exact sums, hashes of values and a table of counts by hash.
#include "recordmill.h"

namespace rm {
namespace {

using Wide = unsigned __int128;

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

int64_t rm_sum_floats(Span<const double> values, Span<ExponentSum> sums) {
  if (values.size > MOST_COUNTED || sums.size < min<int64_t>(values.size, EXPONENTS)) return BOUNDS;
  struct {
    __int128 sum;
    Wide squares;  // of 2^16 values with 106 bits each
  } totals[EXPONENTS] = {};
  for (int64_t i = 0; i < values.size; i++) {
    const int64_t bits = load<int64_t>(reinterpret_cast<const uint8_t *>(values.data + i));
    int64_t exponent = bits >> 52 & 0x7FF, mantissa = bits & ((1ll << 52) - 1);
    if (exponent == 0x7FF) return BOUNDS;
    if (exponent) mantissa |= 1ll << 52, exponent--;
    totals[exponent].sum += bits < 0 ? -mantissa : mantissa;
    totals[exponent].squares += static_cast<Wide>(mantissa) * static_cast<Wide>(mantissa);
  }
  int64_t count = 0;
  for (int64_t i = 0; i < EXPONENTS; i++)
    if (const auto &[sum, squares] = totals[i]; squares > 0)
      sums[count++] = {i, static_cast<int64_t>(sum >> 64), static_cast<uint64_t>(sum),
                       static_cast<uint64_t>(squares >> 64), static_cast<uint64_t>(squares)};
  return count;
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
