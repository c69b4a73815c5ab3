// Columns of text fields: infers their types, and converts them to the values that Arrow holds.
#include "masks.h"
#include "numbers.h"

namespace rm {
namespace {

// The fields of a column with the operations of a reader.
struct Fields : TextFields {
  uint64_t token_sizes = 0;  // bit n is set if a null token has n bytes; bit 63 if one has 63 or more

  explicit Fields(const TextFields &fields) : TextFields(fields) {}

  // Returns whether the tokens are inside their array. Must be called before the others.
  bool prepare() {
    for (int64_t i = 0, start = 0; i < token_ends.size; start = token_ends[i++]) {
      if (!tokens.holds(start, token_ends[i] - start)) return false;
      token_sizes |= uint64_t{1} << min<int64_t>(token_ends[i] - start, 63);
    }
    return starts.size == infos.size;
  }

  // Gets the text of a field. Returns false if it is outside the data.
  RM_INLINE bool get(int64_t row, ByteSpan &text) const {
    const int64_t start = starts[row], size = infos[row] & FIELD_LENGTH_MASK;
    if (!data.holds(start, size)) return false;
    text = {data.data + start, size};
    return true;
  }
  RM_INLINE bool is_quoted(int64_t row) const { return infos[row] & FIELD_QUOTED_BIT; }

  // Returns the index of the null token that a text equals, or -1. The size excludes most texts without a comparison.
  RM_INLINE int64_t token_of(ByteSpan text) const {
    if (RM_LIKELY(!(token_sizes >> min<int64_t>(text.size, 63) & 1))) return -1;
    for (int64_t i = 0, start = 0; i < token_ends.size; start = token_ends[i++]) {
      if (token_ends[i] - start != text.size) continue;
      if (text.size == 0 || !memcmp(tokens.data + start, text.data, text.size)) return i;
    }
    return -1;
  }
};

// Each kind of column has a reader: `scan` parses a text, and `convert` makes a value of the result or returns a fault.
// ORDINARY: the classes of text that the column accepts while its type is being inferred.

struct Classes {
  using Value = int64_t;
  static constexpr int64_t ORDINARY = -1;
  const int64_t &column_classes;  // of the fields so far
  int64_t final_class;            // once the column has this class, texts are not classified any more; 0: never

  RM_INLINE Class scan(ByteSpan text) const {
    return column_classes & final_class ? Class{final_class, NumberLoss::NONE} : classify(text);
  }
  RM_INLINE FieldFault convert(Class text_class, Value &value) const {
    value = text_class.bits;
    return FieldFault::NONE;
  }
};

struct Integers {
  using Value = int64_t;
  static constexpr int64_t ORDINARY = TextClass::INT64;
  int64_t low;
  uint64_t high;

  RM_INLINE Number scan(ByteSpan text) const { return scan_number(text); }
  // Whole numbers in any notation: 5, 5.0, 5e0. Beyond 19 digits, zeros may follow: 12.00000000000000000000.
  RM_INLINE FieldFault convert(Number &number, Value &value) const {
    const bool is_decimal = number.kind == NumberKind::DECIMAL, is_whole = number.kind == NumberKind::WHOLE;
    if (is_decimal || number.is_long) normalize_power(number);
    if ((!is_decimal && !is_whole) || number.power < 0 || (is_decimal && number.is_cut)) return FieldFault::WRONG_TYPE;
    const uint64_t limit = number.is_negative ? 0 - static_cast<uint64_t>(low) : high;
    if (number.is_cut || number.power > 0 || number.digits > limit) return FieldFault::OUT_OF_RANGE;
    value = number.as_int64();
    return FieldFault::NONE;
  }
};

struct Floats {
  using Value = double;
  static constexpr int64_t ORDINARY = TextClass::INT64 | TextClass::FLOAT32;
  int64_t mantissa_bits;
  double overflow_limit;

  RM_INLINE Number scan(ByteSpan text) const { return scan_number(text); }
  RM_INLINE FieldFault convert(const Number &number, Value &value) const {
    if (number.kind == NumberKind::NONE) return FieldFault::WRONG_TYPE;
    Rounded rounded = magnitude(number);
    if (RM_UNLIKELY(can_round_twice(rounded.value, mantissa_bits)) && rounded.is_decided)
      rounded = round_to_odd(number, rounded.value);
    value = number.is_negative ? -rounded.value : rounded.value;
    if (number.kind == NumberKind::WORD) return FieldFault::NONE;
    const bool is_whole = number.kind == NumberKind::WHOLE;
    if (!rounded.is_decided || (is_whole && number.is_long)) return FieldFault::UNDECIDED;
    if (rounded.value >= overflow_limit) return FieldFault::OUT_OF_RANGE;
    return is_whole && !fits_bits(number.digits, mantissa_bits) ? FieldFault::INEXACT : FieldFault::NONE;
  }
};

struct Booleans {
  using Value = uint8_t;
  static constexpr int64_t ORDINARY = 0;

  RM_INLINE int scan(ByteSpan text) const {
    return text.size == 1 && (text[0] | 1) == '1' ? text[0] - '0' : scan_bool(text);
  }
  RM_INLINE FieldFault convert(int parsed, Value &value) const {
    value = parsed > 0;
    return parsed < 0 ? FieldFault::WRONG_TYPE : FieldFault::NONE;
  }
};

struct Timestamps {
  using Value = int64_t;
  static constexpr int64_t ORDINARY = -1;
  int64_t nanos_per_unit;
  bool is_aware;

  RM_INLINE Timestamp scan(ByteSpan text) const { return scan_timestamp(text); }
  RM_INLINE FieldFault convert(const Timestamp &time, Value &value) const {
    if (time.unit == 0) return FieldFault::WRONG_TYPE;
    if (time.has_zone != is_aware) return time.has_zone ? FieldFault::HAS_ZONE : FieldFault::NO_ZONE;
    if (time.nanos % nanos_per_unit != 0) return FieldFault::TOO_FINE;
    if (nanos_per_unit == 1 && (class_of(time).bits & TextClass::BEYOND_NANOS)) return FieldFault::OUT_OF_RANGE;
    value = time.seconds * (1'000'000'000 / nanos_per_unit) + time.nanos / nanos_per_unit;
    return FieldFault::NONE;
  }
};

RM_INLINE Class class_of(Class text_class) { return text_class; }
RM_INLINE Class class_of(int parsed) { return {parsed < 0 ? TextClass::TEXT : TextClass::BOOL, NumberLoss::NONE}; }

}  // namespace

int64_t rm_read_fields(const TextFields &text_fields, const FieldType &type, Span<uint8_t> values, Span<uint8_t> valid,
                       Span<uint8_t> fault, ColumnCounts &counts, Span<int64_t> null_counts) {
  Fields fields(text_fields);
  const int64_t rows = fields.starts.size;
  if (!fields.prepare() || ((valid || (fault && fields.token_ends)) && valid.size < rows)) return BOUNDS;
  if ((null_counts || !fault) && null_counts.size < fields.token_ends.size) return BOUNDS;
  if (fault && fault.size < rows) return BOUNDS;
  const auto read = [&](auto reader) -> int64_t {
    using Value = typename decltype(reader)::Value;
    const Span<Value> out{reinterpret_cast<Value *>(values.data), values.size / static_cast<int64_t>(sizeof(Value))};
    if (out && out.size < rows) return BOUNDS;
    for (int64_t row = 0; row < rows; row++) {
      ByteSpan text;
      if (!fields.get(row, text)) return BOUNDS;
      Value value = 0;
      if (const int64_t token = fields.token_of(text); token >= 0) {
        if (valid) valid[row] = 0;
        const bool is_soft = fields.is_quoted(row);
        counts.values += is_soft, counts.soft_nulls += is_soft;
        if (null_counts) null_counts[token] += !is_soft;
      } else {
        auto parsed = reader.scan(text);
        const FieldFault field_fault = reader.convert(parsed, value);
        if (fault) {
          fault[row] = static_cast<uint8_t>(field_fault);
        } else {
          const Class text_class = class_of(parsed);
          if (field_fault != FieldFault::NONE || !(text_class.bits & reader.ORDINARY)) return row;
          counts.values++;
          counts.classes |= text_class.bits;
          counts.inexact_decimals += text_class.loss == NumberLoss::INEXACT_DECIMAL;
          counts.inexact_integers += text_class.loss == NumberLoss::INEXACT_INTEGER;
          counts.beyond_int64 += text_class.loss == NumberLoss::BEYOND_INT64;
          counts.beyond_float32 += text_class.loss == NumberLoss::BEYOND_FLOAT32;
        }
      }
      if (out) out[row] = value;
    }
    return rows;
  };
  switch (type.kind) {
    case FieldKind::CLASSES: return read(Classes{counts.classes, TextClass::TEXT});
    case FieldKind::NUMBERS: return read(Classes{counts.classes, 0});
    case FieldKind::INTEGERS: return read(Integers{type.low, type.high});
    case FieldKind::FLOATS:
      if (type.mantissa_bits < 0 || type.mantissa_bits > 63) return BOUNDS;  // they are shifted by
      return read(Floats{type.mantissa_bits, type.overflow_limit});
    case FieldKind::BOOLEANS: return read(Booleans{});
    case FieldKind::TIMESTAMPS:
      if (type.nanos_per_unit <= 0) return BOUNDS;
      return read(Timestamps{type.nanos_per_unit, type.is_aware != 0});
    default: return BOUNDS;
  }
}

int64_t rm_find_bad_lines(ByteSpan data, IntSpan starts, IntSpan stops, Span<int64_t> positions) {
  if (stops.size != starts.size || positions.size != starts.size) return BOUNDS;
  const bool is_all_ascii = is_ascii(data.data, data.size);
  int64_t bad = 0;
  for (int64_t i = 0; i < starts.size; i++) {
    if (!data.holds(starts[i], stops[i] - starts[i])) return BOUNDS;
    positions[i] = is_all_ascii ? -1 : find_bad_utf8(data.data, starts[i], stops[i]);
    bad += positions[i] >= 0;
  }
  return bad;
}

}  // namespace rm
