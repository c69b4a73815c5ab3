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

// Adds the values of `count` elements from `begin` on, value by value.
//   values: the first value of element `begin`
template <typename T>
void add_columns(const uint8_t *values, int64_t rows, int64_t begin, int64_t count, const ElementSums &sums) {
  const int64_t elements = sums.finite.size, row_bytes = elements * static_cast<int64_t>(sizeof(T));
  for (int64_t row = 0; row < rows; row++, values += row_bytes)
    for (int64_t i = begin; i < begin + count; i++) {
      const T value = load<T>(values + (i - begin) * static_cast<int64_t>(sizeof(T)));
      const auto [mantissa, exponent, sign, is_finite] = scaled(value);
      if (RM_UNLIKELY(!is_finite)) continue;
      const double number = static_cast<double>(value) + 0.0;  // -0.0 becomes 0.0
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

// Arrays of float32 are counted in panels of this many rows and lanes. A lane is the values of an element in some of the
// rows. The sums of a panel fit into 64 bits: 48 of a shifted mantissa, and 12 of the number of rows.
constexpr int64_t PANEL_ROWS = 4096, PANEL_LANES = 256;
// Largest difference of the exponents of the values in a lane, so that a shifted mantissa has at most 48 bits.
constexpr int32_t MAX_EXPONENT_SPREAD = 24;

// Adds a number of any size to limbs, in units of 2^exponent.
void add_wide(int64_t *limbs, int64_t stride, Wide number, int64_t exponent, int64_t sign) {
  int64_t *limb = limbs + (exponent >> 5) * stride;
  // the lowest limb first, so that the number can be shifted without overflow
  const int64_t shift = exponent & 31;
  *limb += sign * static_cast<int64_t>(number << shift & UINT32_MAX);
  for (number >>= 32 - shift; number != 0; number >>= 32) *(limb += stride) += sign * static_cast<int64_t>(number & UINT32_MAX);
}

// The exact sums of a panel, in units of each lane's lowest exponent. The compiler uses vectors for all loops over lanes.
struct Panel {
  int32_t lowest[PANEL_LANES], highest[PANEL_LANES];  // biased exponents, `lowest` without zeros
  int32_t minima[PANEL_LANES], maxima[PANEL_LANES];   // see `ordered`
  int64_t sums[PANEL_LANES];
  // A square is high^2 * 2^48 + 2 * high * low * 2^24 + low^2.
  int64_t high_squares[PANEL_LANES], products[PANEL_LANES], low_squares[PANEL_LANES];

  // Bits of a float as a number with the same order. It is its own inverse.
  static RM_INLINE int32_t ordered(int32_t bits) { return bits ^ (bits >> 31 & INT32_MAX); }
  // The biased exponent. Subnormals have no leading 1, and scale as exponent 1.
  static RM_INLINE int32_t exponent_of(int32_t bits) { return max(bits >> 23 & 0xFF, 1); }
  static RM_INLINE int32_t mantissa_of(int32_t bits) { return (bits & 0x7FFFFF) | ((bits >> 23 & 0xFF) != 0 ? 0x800000 : 0); }

  // Returns whether all values are finite, and no lane has exponents that are too different.
  bool scan(const uint8_t *values, int64_t rows, int64_t lanes, int64_t row_bytes) {
    for (int64_t i = 0; i < lanes; i++)
      lowest[i] = INT32_MAX, highest[i] = 0, minima[i] = INT32_MAX, maxima[i] = INT32_MIN;
    for (int64_t row = 0; row < rows; row++, values += row_bytes)
      for (int64_t i = 0; i < lanes; i++) {
        const int32_t bits = load<int32_t>(values + 4 * i), exponent = exponent_of(bits);
        lowest[i] = min(lowest[i], (bits & INT32_MAX) != 0 ? exponent : INT32_MAX);
        highest[i] = max(highest[i], exponent);
        minima[i] = min(minima[i], ordered(bits)), maxima[i] = max(maxima[i], ordered(bits));
      }
    bool fits = true;
    for (int64_t i = 0; i < lanes; i++) {
      lowest[i] = min(lowest[i], highest[i]);  // a lane with zeros only
      fits &= highest[i] < 0xFF && highest[i] - lowest[i] <= MAX_EXPONENT_SPREAD;
    }
    return fits;
  }

  void add(const uint8_t *values, int64_t rows, int64_t lanes, int64_t row_bytes) {
    for (int64_t i = 0; i < lanes; i++) sums[i] = high_squares[i] = products[i] = low_squares[i] = 0;
    for (int64_t row = 0; row < rows; row++, values += row_bytes)
      for (int64_t i = 0; i < lanes; i++) {
        const int32_t bits = load<int32_t>(values + 4 * i);
        // the exponent of a zero can be below the lowest one
        const int64_t shift = max(exponent_of(bits) - lowest[i], 0);
        const int64_t number = static_cast<int64_t>(mantissa_of(bits)) << shift;
        sums[i] += bits < 0 ? -number : number;
        const int64_t high = number >> 24, low = number & 0xFFFFFF;
        // The compiler knows the product of two 32-bit numbers as one instruction.
        const auto product = [](int64_t a, int64_t b) {
          return static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(a)) * static_cast<uint32_t>(b));
        };
        high_squares[i] += product(high, high), products[i] += product(high, low), low_squares[i] += product(low, low);
      }
  }

  // Adds lane i to an element.
  void flush(int64_t i, int64_t element, const ElementSums &totals) const {
    const int64_t elements = totals.finite.size, exponent = lowest[i] - 1;
    const auto number = [](int32_t order) {
      const int32_t bits = ordered(order);
      return static_cast<double>(load<float>(reinterpret_cast<const uint8_t *>(&bits))) + 0.0;  // -0.0 becomes 0.0
    };
    totals.minima[element] = min(totals.minima[element], number(minima[i]));
    totals.maxima[element] = max(totals.maxima[element], number(maxima[i]));
    const int64_t sum = sums[i];
    add_wide(&totals.limbs[element], elements, static_cast<Wide>(sum < 0 ? -sum : sum), exponent, sum < 0 ? -1 : 1);
    const Wide squares = (static_cast<Wide>(high_squares[i]) << 48) + (static_cast<Wide>(products[i]) << 25) +
                         static_cast<Wide>(low_squares[i]);
    add_wide(&totals.square_limbs[element], elements, squares, 2 * exponent, 1);
  }
};

// Adds rows of float32 panel by panel. Panels with exceptional values are added value by value.
void add_floats(const uint8_t *values, int64_t rows, int64_t elements, const ElementSums &sums) {
  // Several short rows are treated as one, so that the loops over lanes are long.
  const int64_t joined = max(PANEL_LANES / elements, int64_t{1}), row_bytes = 4 * elements;
  Panel panel;
  for (int64_t row = 0; row < rows;) {
    const int64_t panel_rows = min(max((rows - row) / joined, int64_t{1}), PANEL_ROWS);
    const int64_t row_group = rows - row < joined ? rows - row : joined;
    const uint8_t *first = values + row * row_bytes;
    row += panel_rows * row_group;
    for (int64_t begin = 0; begin < elements; begin += PANEL_LANES) {
      const int64_t lanes = min(elements - begin, PANEL_LANES) * row_group;
      if (panel.scan(first + 4 * begin, panel_rows, lanes, row_bytes * row_group)) {
        panel.add(first + 4 * begin, panel_rows, lanes, row_bytes * row_group);
        for (int64_t i = 0; i < lanes; i++) panel.flush(i, begin + i % elements, sums);
        for (int64_t i = 0; i < lanes; i++) sums.finite[begin + i % elements] += panel_rows;
      } else {
        add_columns<float>(first + 4 * begin, panel_rows * row_group, begin, min(elements - begin, PANEL_LANES), sums);
      }
    }
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
    case ElementKind::INT64: add_columns<int64_t>(values.data, rows, 0, elements, sums); break;
    case ElementKind::FLOAT32: add_floats(values.data, rows, elements, sums); break;
    case ElementKind::FLOAT64: add_columns<double>(values.data, rows, 0, elements, sums); break;
    default: return BOUNDS;
  }
  return rows;
}

int64_t rm_count_keys(Span<const uint64_t> keys, ByteSpan dropped_bits, Span<const uint64_t> bins, Span<int64_t> counts,
                      Span<int32_t> slots, Span<uint64_t> new_keys) {
  if (slots.size < 2 || (slots.size & (slots.size - 1)) || slots.size / 2 < bins.size || bins.size > INT32_MAX) return BOUNDS;
  if (counts.size != bins.size || new_keys.size < keys.size) return BOUNDS;
  if (dropped_bits.size != 0 && dropped_bits.size != KEY_RANGES) return BOUNDS;
  const int shift = leading_zeros(static_cast<uint64_t>(slots.size)) + 1;
  const uint64_t mask = static_cast<uint64_t>(slots.size) - 1;
  memset(slots.data, 0, static_cast<size_t>(slots.size) * sizeof slots[0]);
  // A slot has the number of a bin plus 1. At least half of them stay 0, so that each search ends.
  for (int64_t i = 0; i < bins.size; i++) {
    uint64_t slot = bins[i] * GOLDEN >> shift;
    while (slots[slot] != 0) slot = (slot + 1) & mask;
    slots[slot] = static_cast<int32_t>(i + 1);
  }
  int64_t num_new = 0;
  for (int64_t i = 0; i < keys.size; i++) {
    uint64_t key = keys[i];
    if (dropped_bits.size) {
      const int dropped = dropped_bits[key >> 50] & 63;
      key = key >> dropped << dropped;
    }
    uint64_t slot = key * GOLDEN >> shift;
    while (slots[slot] != 0 && bins[slots[slot] - 1] != key) slot = (slot + 1) & mask;
    if (slots[slot] != 0) {
      counts[slots[slot] - 1]++;
    } else {
      new_keys[num_new++] = key;
    }
  }
  return num_new;
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
