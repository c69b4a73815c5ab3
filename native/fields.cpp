// Columns of text fields: what they are (`infer`), and their values as Arrow holds them.
#include "numbers.h"
#include "masks.h"

namespace rm {
namespace {

// The texts that stand for a null: token i is data[ends[i - 1], ends[i]).
struct Tokens {
  ByteSpan data;
  IntSpan ends;
  uint64_t sizes = 0;  // bit n: one of them has n bytes; bit 63: or 63 and more

  bool is_valid() {
    for (int64_t i = 0, start = 0; i < ends.size; start = ends[i++]) {
      if (ends[i] < start || ends[i] > data.size) return false;
      sizes |= uint64_t{1} << min<int64_t>(ends[i] - start, 63);
    }
    return true;
  }

  // Which token a text is; -1 if it is a value.
  RM_INLINE int64_t index_of(Text text) const {
    if (RM_LIKELY(!(sizes >> min<int64_t>(text.size(), 63) & 1))) return -1;
    for (int64_t i = 0, start = 0; i < ends.size; start = ends[i++]) {
      if (ends[i] - start != text.size()) continue;
      if (text.size() == 0 || !memcmp(data.data + start, text.data + text.start, text.size())) return i;
    }
    return -1;
  }
};

// Where the fields of a column lie.
struct Fields {
  ByteSpan data;
  Span<const int32_t> starts, infos;
  Tokens tokens;

  bool is_valid() { return starts.size == infos.size && tokens.is_valid(); }
  // A field; false if it lies outside of the data.
  RM_INLINE bool get(int64_t row, Text &text) const {
    const int64_t start = starts[row], size = infos[row] & FIELD_LENGTH;
    text = {data.data, start, start + size};
    return data.holds(start, size);
  }
  RM_INLINE bool is_quoted(int64_t row) const { return infos[row] & FIELD_QUOTED; }
};

// How a column reads its fields: `parse` gives a fault; `infer` says what the field is, without bits if it is no plain
// value of the column's dtype, of which `parse` would make the same. known: the classes of the column so far.

struct Classes {
  using Value = int64_t;
  int64_t settled;  // a column that has this class is not looked at any more

  RM_INLINE int64_t parse(Text text, Value &value) const {
    value = classify(text).bits;
    return FITS;
  }
  RM_INLINE Class infer(Text text, Value &value, int64_t known) const {
    const Class found = known & settled ? Class{settled, NO_LOSS} : classify(text);
    value = found.bits;
    return found;
  }
};

struct Integers {
  using Value = int64_t;
  int64_t low;
  uint64_t high;

  // Whole numbers however they are written: 5, 5.0, 5e0.
  RM_INLINE int64_t parse(Text text, Value &value) const {
    Number number = scan_number(text);
    const bool is_decimal = number.kind == NumberKind::DECIMAL;
    if (is_decimal || number.is_long) approach_whole(number);
    if (number.kind == NumberKind::NONE || number.power < 0 || (is_decimal && number.is_cut)) return WRONG_TYPE;
    const uint64_t most = number.is_negative ? 0 - static_cast<uint64_t>(low) : high;
    if (number.is_long || number.is_cut || number.power > 0 || number.digits > most) return BEYOND_RANGE;
    value = number.as_int64();
    return FITS;
  }
  RM_INLINE Class infer(Text text, Value &value, int64_t) const {
    const Number number = scan_number(text);
    value = number.as_int64();
    return number.kind == NumberKind::WHOLE && !number.is_odd && number.fits_int64() ? class_of(number) : Class{};
  }
};

struct Floats {
  using Value = double;
  int64_t bits;   // significant ones that a whole number may have
  double beyond;  // values from here on are out of range

  RM_INLINE int64_t parse(Text text, Value &value) const {
    const Number number = scan_number(text);
    if (number.kind == NumberKind::NONE) return word_number(text, value) ? FITS : WRONG_TYPE;
    const Rounded rounded = magnitude(number);
    value = number.is_negative ? -rounded.value : rounded.value;
    const bool is_whole = number.kind == NumberKind::WHOLE;
    if (!rounded.is_decided || (is_whole && number.is_long)) return UNDECIDED;
    if (rounded.value >= beyond) return BEYOND_RANGE;
    return is_whole && !fits_bits(number.digits, bits) ? INEXACT : FITS;
  }
  RM_INLINE Class infer(Text text, Value &value, int64_t) const {
    const Number number = scan_number(text);
    if (number.kind == NumberKind::NONE) return {word_number(text, value) ? FLOAT32_CLASS : 0, NO_LOSS};
    const Rounded rounded = magnitude(number);
    value = number.is_negative ? -rounded.value : rounded.value;
    const Class found = class_of(number);
    return rounded.is_decided && !number.is_odd && found.loss <= INEXACT_DECIMAL ? found : Class{};
  }
};

struct Booleans {
  using Value = uint8_t;

  RM_INLINE int64_t parse(Text text, Value &value) const {
    const int found = text.size() == 1 && (text[0] | 1) == '1' ? text[0] - '0' : truth(text);
    if (found < 0) return WRONG_TYPE;
    value = static_cast<uint8_t>(found);
    return FITS;
  }
  RM_INLINE Class infer(Text, Value &, int64_t) const { return {}; }
};

struct Timestamps {
  using Value = int64_t;
  int64_t nanos_per_unit;
  bool is_aware;

  RM_INLINE int64_t convert(const Timestamp &time, Value &value) const {
    if (time.unit == 0) return WRONG_TYPE;
    if (time.has_zone != is_aware) return time.has_zone ? HAS_ZONE : NO_ZONE;
    if (time.nanos % nanos_per_unit != 0) return TOO_FINE;
    if (nanos_per_unit == 1 && (time.classes() & BEYOND_NANOS_CLASS)) return BEYOND_RANGE;
    value = time.seconds * (1'000'000'000 / nanos_per_unit) + time.nanos / nanos_per_unit;
    return FITS;
  }
  RM_INLINE int64_t parse(Text text, Value &value) const { return convert(scan_timestamp(text), value); }
  RM_INLINE Class infer(Text text, Value &value, int64_t) const {
    const Timestamp time = scan_timestamp(text);
    return {convert(time, value) == FITS ? time.classes() : 0, NO_LOSS};
  }
};

// Values of type T in the bytes that were passed for them.
template <typename T>
RM_INLINE Span<T> typed(Span<uint8_t> bytes) {
  return {reinterpret_cast<T *>(bytes.data), bytes.size / static_cast<int64_t>(sizeof(T))};
}

// Calls visit with what reads the fields of a type; BOUNDS if there is no such type.
template <typename Visit>
RM_INLINE int64_t visit_kind(const FieldType &type, Visit visit) {
  switch (type.kind) {
    case CLASS_FIELDS: return visit(Classes{TEXT_CLASS});
    case NUMBER_FIELDS: return visit(Classes{0});
    case INTEGER_FIELDS: return visit(Integers{type.low, type.high});
    case FLOAT_FIELDS: return type.bits < 0 || type.bits > 63 ? BOUNDS : visit(Floats{type.bits, type.beyond});
    case BOOLEAN_FIELDS: return visit(Booleans{});
    case TIMESTAMP_FIELDS:
      return type.nanos_per_unit <= 0 ? BOUNDS : visit(Timestamps{type.nanos_per_unit, type.is_aware != 0});
    default: return BOUNDS;
  }
}

}  // namespace

int64_t rm_parse_fields(ByteSpan data, Span<const int32_t> starts, Span<const int32_t> infos, ByteSpan tokens,
                        IntSpan token_ends, const FieldType &type, Span<uint8_t> values, Span<uint8_t> valid,
                        Span<uint8_t> fault, FieldTotals &totals) {
  Fields fields{data, starts, infos, {tokens, token_ends}};
  if (!fields.is_valid() || fault.size < starts.size || (token_ends && valid.size < starts.size)) return BOUNDS;
  totals = {};
  return visit_kind(type, [&](auto kind) -> int64_t {
    using Value = typename decltype(kind)::Value;
    const Span<Value> out = typed<Value>(values);
    if (out.size < starts.size) return BOUNDS;
    int64_t nulls = 0, faults = 0;
    for (int64_t row = 0; row < starts.size; row++) {
      Text text;
      if (!fields.get(row, text)) return BOUNDS;
      Value value = 0;
      if (fields.tokens.index_of(text) >= 0) {
        valid[row] = 0;
        nulls++;
      } else if (const int64_t found = kind.parse(text, value)) {
        fault[row] = static_cast<uint8_t>(found);
        faults++;
      }
      out[row] = value;
    }
    totals = {nulls, faults};
    return 0;
  });
}

int64_t rm_infer_fields(ByteSpan data, Span<const int32_t> starts, Span<const int32_t> infos, ByteSpan tokens,
                        IntSpan token_ends, const FieldType &type, ColumnCounts &counts, Span<int64_t> null_counts,
                        Span<uint8_t> values, Span<uint8_t> valid, FieldTotals &totals) {
  Fields fields{data, starts, infos, {tokens, token_ends}};
  if (!fields.is_valid() || null_counts.size < token_ends.size || (valid && valid.size < starts.size)) return BOUNDS;
  totals = {};
  return visit_kind(type, [&](auto kind) -> int64_t {
    using Value = typename decltype(kind)::Value;
    const Span<Value> out = typed<Value>(values);
    if (out && out.size < starts.size) return BOUNDS;
    for (int64_t row = 0; row < starts.size; row++) {
      Text text;
      if (!fields.get(row, text)) return BOUNDS;
      Value value = 0;
      if (const int64_t token = fields.tokens.index_of(text); token >= 0) {
        totals.nulls++;
        if (valid) valid[row] = 0;
        const bool is_soft = fields.is_quoted(row);  // a value, if the column is text
        counts.values += is_soft, counts.soft_nulls += is_soft, null_counts[token] += !is_soft;
      } else {
        const Class found = kind.infer(text, value, counts.classes);
        if (!found.bits) return row;
        counts.values++;
        counts.classes |= found.bits;
        counts.inexact_decimals += found.loss == INEXACT_DECIMAL;
        counts.inexact_integers += found.loss == INEXACT_INTEGER;
        counts.beyond_int64 += found.loss == BEYOND_INT64;
        counts.overflows += found.loss == BEYOND_FLOAT32;
      }
      if (out) out[row] = value;
    }
    return starts.size;
  });
}

int64_t rm_parse_texts(ByteSpan data, Span<const int32_t> starts, Span<const int32_t> infos, ByteSpan tokens,
                       IntSpan token_ends, Span<int64_t> offsets, Span<uint8_t> out, Span<uint8_t> valid) {
  Fields fields{data, starts, infos, {tokens, token_ends}};
  if (!fields.is_valid() || offsets.size < starts.size + 1 || valid.size < starts.size) return BOUNDS;
  int64_t into = 0, nulls = 0;
  offsets[0] = 0;
  for (int64_t row = 0; row < starts.size; row++) {
    Text text;
    if (!fields.get(row, text)) return BOUNDS;
    if (!fields.is_quoted(row) && fields.tokens.index_of(text) >= 0) {
      valid[row] = 0;
      nulls++;
    } else {
      if (text.size() > out.size - into) return BOUNDS;
      copy_short(out.data + into, data.data + text.start, text.size());
      into += text.size();
    }
    offsets[row + 1] = into;
  }
  return nulls;
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
