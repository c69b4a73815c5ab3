// Columns of text fields: what they are, and their values as Arrow holds them.
#include "masks.h"
#include "numbers.h"

namespace rm {
namespace {

// Where the fields of a column lie, and the texts that stand for a null: token i is tokens[token_ends[i - 1],
// token_ends[i]).
struct Fields {
  ByteSpan data;
  Span<const int32_t> starts, infos;
  ByteSpan tokens;
  IntSpan token_ends;
  uint64_t token_sizes = 0;  // bit n: one of them has n bytes; bit 63: or 63 and more

  bool is_valid() {
    for (int64_t i = 0, start = 0; i < token_ends.size; start = token_ends[i++]) {
      if (!tokens.holds(start, token_ends[i] - start)) return false;
      token_sizes |= uint64_t{1} << min<int64_t>(token_ends[i] - start, 63);
    }
    return starts.size == infos.size;
  }

  // A field; false if it lies outside of the data.
  RM_INLINE bool get(int64_t row, ByteSpan &text) const {
    const int64_t start = starts[row], size = infos[row] & FIELD_LENGTH;
    if (!data.holds(start, size)) return false;
    text = {data.data + start, size};
    return true;
  }
  RM_INLINE bool is_quoted(int64_t row) const { return infos[row] & FIELD_QUOTED; }

  // Which token a text is; -1 if it is a value.
  RM_INLINE int64_t token_of(ByteSpan text) const {
    if (RM_LIKELY(!(token_sizes >> min<int64_t>(text.size, 63) & 1))) return -1;
    for (int64_t i = 0, start = 0; i < token_ends.size; start = token_ends[i++]) {
      if (token_ends[i] - start != text.size) continue;
      if (text.size == 0 || !memcmp(tokens.data + start, text.data, text.size)) return i;
    }
    return -1;
  }
};

// How a column reads its fields: `scan` finds out what a text is, `convert` makes a value of that or gives a fault.
// PLAIN: the classes whose values are those of the column where it is inferred.

struct Classes {
  using Value = int64_t;
  static constexpr int64_t PLAIN = -1;
  const int64_t &known;  // of the column so far
  int64_t settled;       // a column that has this class is not looked at any more

  RM_INLINE Class scan(ByteSpan text) const { return known & settled ? Class{settled, NO_LOSS} : classify(text); }
  RM_INLINE int64_t convert(Class found, Value &value) const {
    value = found.bits;
    return FITS;
  }
};

struct Integers {
  using Value = int64_t;
  static constexpr int64_t PLAIN = INT64_CLASS;
  int64_t low;
  uint64_t high;

  RM_INLINE Number scan(ByteSpan text) const { return scan_number(text); }
  // Whole numbers however they are written: 5, 5.0, 5e0.
  RM_INLINE int64_t convert(Number &number, Value &value) const {
    const bool is_decimal = number.kind == NumberKind::DECIMAL, is_whole = number.kind == NumberKind::WHOLE;
    if (is_decimal || number.is_long) approach_whole(number);
    if ((!is_decimal && !is_whole) || number.power < 0 || (is_decimal && number.is_cut)) return WRONG_TYPE;
    const uint64_t most = number.is_negative ? 0 - static_cast<uint64_t>(low) : high;
    if (number.is_long || number.is_cut || number.power > 0 || number.digits > most) return BEYOND_RANGE;
    value = number.as_int64();
    return FITS;
  }
};

struct Floats {
  using Value = double;
  static constexpr int64_t PLAIN = INT64_CLASS | FLOAT32_CLASS;
  int64_t bits;   // significant ones that a whole number may have
  double beyond;  // values from here on are out of range

  RM_INLINE Number scan(ByteSpan text) const { return scan_number(text); }
  RM_INLINE int64_t convert(const Number &number, Value &value) const {
    if (number.kind == NumberKind::NONE) return WRONG_TYPE;
    const Rounded rounded = magnitude(number);
    value = number.is_negative ? -rounded.value : rounded.value;
    if (number.kind == NumberKind::WORD) return FITS;
    const bool is_whole = number.kind == NumberKind::WHOLE;
    if (!rounded.is_decided || (is_whole && number.is_long)) return UNDECIDED;
    if (rounded.value >= beyond) return BEYOND_RANGE;
    return is_whole && !fits_bits(number.digits, bits) ? INEXACT : FITS;
  }
};

struct Booleans {
  using Value = uint8_t;
  static constexpr int64_t PLAIN = 0;

  RM_INLINE int scan(ByteSpan text) const {
    return text.size == 1 && (text[0] | 1) == '1' ? text[0] - '0' : truth(text);
  }
  RM_INLINE int64_t convert(int found, Value &value) const {
    value = found > 0;
    return found < 0 ? WRONG_TYPE : FITS;
  }
};

struct Timestamps {
  using Value = int64_t;
  static constexpr int64_t PLAIN = -1;
  int64_t nanos_per_unit;
  bool is_aware;

  RM_INLINE Timestamp scan(ByteSpan text) const { return scan_timestamp(text); }
  RM_INLINE int64_t convert(const Timestamp &time, Value &value) const {
    if (time.unit == 0) return WRONG_TYPE;
    if (time.has_zone != is_aware) return time.has_zone ? HAS_ZONE : NO_ZONE;
    if (time.nanos % nanos_per_unit != 0) return TOO_FINE;
    if (nanos_per_unit == 1 && (class_of(time).bits & BEYOND_NANOS_CLASS)) return BEYOND_RANGE;
    value = time.seconds * (1'000'000'000 / nanos_per_unit) + time.nanos / nanos_per_unit;
    return FITS;
  }
};

RM_INLINE Class class_of(Class found) { return found; }
RM_INLINE Class class_of(int truth) { return {truth < 0 ? TEXT_CLASS : BOOL_CLASS, NO_LOSS}; }

}  // namespace

int64_t rm_read_fields(ByteSpan data, Span<const int32_t> starts, Span<const int32_t> infos, ByteSpan tokens,
                       IntSpan token_ends, const FieldType &type, Span<uint8_t> values, Span<uint8_t> valid,
                       Span<uint8_t> fault, ColumnCounts &counts, Span<int64_t> null_counts) {
  Fields fields{data, starts, infos, tokens, token_ends};
  if (!fields.is_valid() || ((valid || (fault && token_ends)) && valid.size < starts.size)) return BOUNDS;
  if ((null_counts || !fault) && null_counts.size < token_ends.size) return BOUNDS;
  if (fault && fault.size < starts.size) return BOUNDS;
  const auto read = [&](auto kind) -> int64_t {
    using Value = typename decltype(kind)::Value;
    const Span<Value> out{reinterpret_cast<Value *>(values.data), values.size / static_cast<int64_t>(sizeof(Value))};
    if (out && out.size < starts.size) return BOUNDS;
    for (int64_t row = 0; row < starts.size; row++) {
      ByteSpan text;
      if (!fields.get(row, text)) return BOUNDS;
      Value value = 0;
      if (const int64_t token = fields.token_of(text); token >= 0) {
        if (valid) valid[row] = 0;
        const bool is_soft = fields.is_quoted(row);  // a value, if the column is text
        counts.values += is_soft, counts.soft_nulls += is_soft;
        if (null_counts) null_counts[token] += !is_soft;
      } else {
        auto found = kind.scan(text);
        const int64_t wrong = kind.convert(found, value);
        if (fault) {
          fault[row] = static_cast<uint8_t>(wrong);
        } else {
          const Class one = class_of(found);
          if (wrong || !(one.bits & kind.PLAIN)) return row;
          counts.values++;
          counts.classes |= one.bits;
          counts.inexact_decimals += one.loss == INEXACT_DECIMAL;
          counts.inexact_integers += one.loss == INEXACT_INTEGER;
          counts.beyond_int64 += one.loss == BEYOND_INT64;
          counts.overflows += one.loss == BEYOND_FLOAT32;
        }
      }
      if (out) out[row] = value;
    }
    return starts.size;
  };
  switch (type.kind) {
    case CLASS_FIELDS: return read(Classes{counts.classes, TEXT_CLASS});
    case NUMBER_FIELDS: return read(Classes{counts.classes, 0});
    case INTEGER_FIELDS: return read(Integers{type.low, type.high});
    case FLOAT_FIELDS: return type.bits < 0 || type.bits > 63 ? BOUNDS : read(Floats{type.bits, type.beyond});
    case BOOLEAN_FIELDS: return read(Booleans{});
    case TIMESTAMP_FIELDS:
      return type.nanos_per_unit <= 0 ? BOUNDS : read(Timestamps{type.nanos_per_unit, type.is_aware != 0});
    default: return BOUNDS;
  }
}

int64_t rm_find_bad_lines(ByteSpan data, IntSpan starts, IntSpan stops, Span<int64_t> places) {
  if (stops.size != starts.size || places.size != starts.size) return BOUNDS;
  const bool is_good = is_ascii(data.data, data.size);
  int64_t bad = 0;
  for (int64_t i = 0; i < starts.size; i++) {
    if (!data.holds(starts[i], stops[i] - starts[i])) return BOUNDS;
    places[i] = is_good ? -1 : find_bad_utf8(data.data, starts[i], stops[i]);
    bad += places[i] >= 0;
  }
  return bad;
}

}  // namespace rm
