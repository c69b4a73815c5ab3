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

// Adds a number of at most 96 bits to three limbs of 32 bits, which are `stride` apart.
//   limb: the one with the lowest bits of the number.
RM_INLINE void add_to_limbs(int64_t *limb, int64_t stride, Wide number, int64_t sign) {
  const uint64_t low = static_cast<uint64_t>(number);
  limb[0] += sign * static_cast<int64_t>(low & UINT32_MAX);
  limb[stride] += sign * static_cast<int64_t>(low >> 32);
  limb[2 * stride] += sign * static_cast<int64_t>(number >> 64);
}

// A number as sign * mantissa * 2^exponent, in the units of its kind.
struct Scaled {
  uint64_t mantissa;
  int64_t exponent, sign;
  bool is_finite;
};

RM_INLINE Scaled scaled(int64_t value) {
  const uint64_t bits = static_cast<uint64_t>(value);
  return {value < 0 ? ~bits + 1 : bits, 0, value < 0 ? -1 : 1, true};
}

RM_INLINE Scaled scaled(float value) {
  const uint32_t bits = load<uint32_t>(reinterpret_cast<const uint8_t *>(&value));
  int64_t exponent = bits >> 23 & 0xFF;
  uint64_t mantissa = bits & 0x7FFFFF;
  const bool is_finite = exponent != 0xFF;
  if (exponent) mantissa |= 0x800000, exponent--;  // subnormals have no leading 1, and scale as exponent 1
  return {mantissa, exponent, bits >> 31 ? -1 : 1, is_finite};
}

RM_INLINE Scaled scaled(double value) {
  const uint64_t bits = load<uint64_t>(reinterpret_cast<const uint8_t *>(&value));
  int64_t exponent = bits >> 52 & 0x7FF;
  uint64_t mantissa = bits & ((1ull << 52) - 1);
  const bool is_finite = exponent != 0x7FF;
  if (exponent) mantissa |= 1ull << 52, exponent--;
  return {mantissa, exponent, bits >> 63 ? -1 : 1, is_finite};
}

template <typename T>
void add_elements(const uint8_t *values, int64_t rows, int64_t elements, const ElementSums &sums) {
  for (int64_t row = 0; row < rows; row++)
    for (int64_t i = 0; i < elements; i++, values += sizeof(T)) {
      const T value = load<T>(values);
      const auto [mantissa, exponent, sign, is_finite] = scaled(value);
      if (RM_UNLIKELY(!is_finite)) continue;
      const double number = static_cast<double>(value);
      sums.finite[i]++;
      sums.minima[i] = min(sums.minima[i], number);
      sums.maxima[i] = max(sums.maxima[i], number);
      add_to_limbs(&sums.limbs[(exponent >> 5) * elements + i], elements, static_cast<Wide>(mantissa) << (exponent & 31),
                   sign);
      // The square has up to 128 bits and is shifted by up to 30, so its halves are added one by one.
      const Wide square = static_cast<Wide>(mantissa) * mantissa;
      const int64_t shift = 2 * exponent & 31;
      int64_t *limb = &sums.square_limbs[(2 * exponent >> 5) * elements + i];
      add_to_limbs(limb, elements, static_cast<Wide>(static_cast<uint64_t>(square)) << shift, 1);
      if (sizeof(T) == 8) add_to_limbs(limb + 2 * elements, elements, (square >> 64) << shift, 1);
    }
}

// Pixels are frequent, and their squares are small: a limb has room for all of them. The compiler uses vectors for this loop.
void add_bytes(const uint8_t *values, int64_t rows, int64_t elements, const ElementSums &sums) {
  int64_t *limb = sums.limbs.data, *square_limb = sums.square_limbs.data;
  double *minima = sums.minima.data, *maxima = sums.maxima.data;
  for (int64_t row = 0; row < rows; row++, values += elements)
    for (int64_t i = 0; i < elements; i++) {
      const int64_t value = values[i];
      limb[i] += value, square_limb[i] += value * value;
      minima[i] = min(minima[i], static_cast<double>(value)), maxima[i] = max(maxima[i], static_cast<double>(value));
    }
  for (int64_t i = 0; i < elements; i++) sums.finite[i] += rows;
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

int64_t rm_add_elements(ByteSpan values, ElementKind kind, const ElementSums &sums) {
  const int64_t elements = sums.finite.size;
  const bool is_float32 = kind == ElementKind::FLOAT32, is_float64 = kind == ElementKind::FLOAT64;
  const int64_t limbs = is_float64 ? FLOAT64_LIMBS : is_float32 ? FLOAT32_LIMBS : INT_LIMBS;
  const int64_t square_limbs = is_float64 ? FLOAT64_SQUARE_LIMBS : is_float32 ? FLOAT32_SQUARE_LIMBS : INT_SQUARE_LIMBS;
  const int64_t item = kind == ElementKind::UINT8 ? 1 : is_float32 ? 4 : 8;
  if (elements < 1 || elements > 1 << 20 || values.size % (elements * item)) return BOUNDS;
  if (sums.minima.size != elements || sums.maxima.size != elements) return BOUNDS;
  if (sums.limbs.size != limbs * elements || sums.square_limbs.size != square_limbs * elements) return BOUNDS;
  const int64_t rows = values.size / (elements * item);
  switch (kind) {
    case ElementKind::UINT8: add_bytes(values.data, rows, elements, sums); break;
    case ElementKind::INT64: add_elements<int64_t>(values.data, rows, elements, sums); break;
    case ElementKind::FLOAT32: add_elements<float>(values.data, rows, elements, sums); break;
    case ElementKind::FLOAT64: add_elements<double>(values.data, rows, elements, sums); break;
    default: return BOUNDS;
  }
  return rows;
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
