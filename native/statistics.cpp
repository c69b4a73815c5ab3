// Exact sums of floats, hashes of texts, and a hash table of counts, for statistics.
#include "recordmill.h"

namespace rm {
namespace {

using Wide = unsigned __int128;

// Returns the high and the low half of a product, combined: each bit depends on many bits of both factors.
RM_INLINE uint64_t folded_product(uint64_t left, uint64_t right) {
  const Wide product = static_cast<Wide>(left) * right;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Odd numbers with as many ones as zeros.
constexpr uint64_t P0 = -0x5F89E29B87429BD1, P1 = (-0x18EE50C4A4BB9F25) | 1, P2 = 0x589965CC75374CC3,
                   P3 = 0x1D8E4E27C47D124F;

// Hashes a text in the manner of wyhash (Wang Yi, 2019): 16 bytes at a time are multiplied to 128 bits and folded.
uint64_t hash_text(const uint8_t *text, uint64_t size) {
  const uint8_t *end = text + size;
  const auto word = [](const uint8_t *position) { return load<uint64_t>(position); };
  uint64_t state = P0 ^ size, first = 0, last = 0;
  for (; end - text > 16; text += 16) state = folded_product(word(text) ^ P1, word(text + 8) ^ state);
  // The last 16 bytes, or all of a shorter text, as two words. These may overlap each other or bytes that were hashed.
  if (size >= 16) {
    first = word(end - 16), last = word(end - 8);
  } else if (size >= 8) {
    first = word(text), last = word(end - 8);
  } else if (size >= 4) {
    first = load<uint32_t>(text), last = load<uint32_t>(end - 4);
  } else if (size > 0) {
    first = static_cast<uint64_t>(text[0]) << 16 | static_cast<uint64_t>(text[size >> 1]) << 8 | end[-1];
  }
  const uint64_t hash = mixed((folded_product(first ^ P2, last ^ state) ^ size * P3) + GOLDEN);
  return max(hash, uint64_t{1});  // 0 marks an empty slot of the table
}

}  // namespace

int64_t rm_sum_floats(Span<const double> values, Span<ExponentSum> sums) {
  if (values.size > MAX_SUMMED_VALUES || sums.size < min<int64_t>(values.size, FLOAT64_EXPONENTS)) return BOUNDS;
  struct {
    __int128 sum;
    Wide squares;  // 2^16 squares of 53 bits need 122 bits
  } totals[FLOAT64_EXPONENTS] = {};
  for (int64_t i = 0; i < values.size; i++) {
    const int64_t bits = load<int64_t>(reinterpret_cast<const uint8_t *>(values.data + i));
    int64_t exponent = bits >> 52 & 0x7FF, mantissa = bits & ((1ll << 52) - 1);
    if (exponent == 0x7FF) return BOUNDS;  // infinity or NaN
    if (exponent) mantissa |= 1ll << 52, exponent--;  // subnormals (exponent 0) have no leading 1 and scale as exponent 1
    totals[exponent].sum += bits < 0 ? -mantissa : mantissa;
    totals[exponent].squares += static_cast<Wide>(mantissa) * static_cast<Wide>(mantissa);
  }
  int64_t count = 0;
  for (int64_t i = 0; i < FLOAT64_EXPONENTS; i++)
    if (const auto &[sum, squares] = totals[i]; squares > 0)  // the sum may be 0 though there are values
      sums[count++] = {i, static_cast<int64_t>(sum >> 64), static_cast<uint64_t>(sum),
                       static_cast<uint64_t>(squares >> 64), static_cast<uint64_t>(squares)};
  return count;
}

int64_t rm_hash_texts(ByteSpan data, IntSpan starts, IntSpan ends, Span<uint64_t> hashes) {
  if (ends.size != starts.size || hashes.size < starts.size) return BOUNDS;
  for (int64_t i = 0; i < starts.size; i++) {
    if (!data.holds(starts[i], ends[i] - starts[i])) return BOUNDS;
    hashes[i] = hash_text(data.data + starts[i], static_cast<uint64_t>(ends[i] - starts[i]));
  }
  return starts.size;
}

int64_t rm_count_hashes(Span<const uint64_t> hashes, int64_t first, uint64_t threshold, int64_t used,
                        Span<uint64_t> slots, Span<int64_t> counts, Span<int32_t> positions) {
  const int64_t max_used = slots.size / 4 * 3;
  if (slots.size < 1 || (slots.size & (slots.size - 1))) return BOUNDS;
  if (counts.size != slots.size || positions.size != slots.size || hashes.size > INT32_MAX) return BOUNDS;
  if (first < 0 || used < 0 || used > max_used) return BOUNDS;
  const uint64_t mask = static_cast<uint64_t>(slots.size) - 1;
  for (int64_t i = first; i < hashes.size; i++) {
    const uint64_t hash = hashes[i];
    if (hash > threshold || hash == 0) continue;
    uint64_t slot = hash & mask;
    for (int64_t probes = 0; slots[slot] != hash && slots[slot] != 0; slot = (slot + 1) & mask)
      if (++probes == slots.size) return BOUNDS;  // `used` was wrong: the table is full
    if (slots[slot] == 0) {
      if (used == max_used) return used << 32 | i;
      slots[slot] = hash, positions[slot] = static_cast<int32_t>(i);
      used++;
    }
    counts[slot]++;
  }
  return used << 32 | hashes.size;
}

}  // namespace rm
