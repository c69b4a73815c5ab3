// Columns of text fields: what they are (`infer`), and their values as Arrow holds them.
#include "numbers.h"
#include "utf8.h"

namespace rm {
namespace {

// The texts that stand for a null: token i is data[ends[i - 1], ends[i]).
struct Tokens {
  Span<const uint8_t> data;
  Span<const int64_t> ends;
  uint64_t sizes;  // bit n: one of them has n bytes; bit 63: or 63 and more

  bool is_valid() {
    int64_t start = 0;
    sizes = 0;
    for (int64_t i = 0; i < ends.size; i++) {
      if (ends[i] < start || ends[i] > data.size) return false;
      sizes |= uint64_t{1} << min<int64_t>(ends[i] - start, 63);
      start = ends[i];
    }
    return true;
  }

  // Which token a text is; -1 if it is a value.
  RM_INLINE int64_t index_of(Text text) const {
    if (RM_LIKELY(!(sizes >> min<int64_t>(text.size(), 63) & 1))) return -1;
    int64_t start = 0;
    for (int64_t i = 0; i < ends.size; start = ends[i++])
      if (ends[i] - start == text.size() && !memcmp(data.data + start, text.data + text.start, text.size())) return i;
    return -1;
  }
};

// Where the fields of a column lie.
struct Fields {
  Span<const uint8_t> data;
  Span<const int32_t> starts, infos;
  Tokens tokens;

  bool is_valid() { return starts.size == infos.size && tokens.is_valid(); }
  // A field; false if it lies outside of the data.
  RM_INLINE bool get(int64_t row, Text &text) const {
    const int64_t start = starts[row], size = infos[row] & RM_FIELD_LENGTH;
    text = {data.data, start, start + size};
    return data.holds(start, size);
  }
  RM_INLINE bool is_quoted(int64_t row) const { return infos[row] & RM_FIELD_QUOTED; }
};

// How a column of a dtype reads its fields: `parse` gives a fault; `infer` counts what the field is, and says whether
// it is a plain value of the dtype, of which `parse` would make the same.

struct Integers {
  using Value = int64_t;
  int64_t low, high;

  // Whole numbers however they are written: 5, 5.0, 5e0.
  RM_INLINE int64_t parse(Text text, Value &value) const {
    Number number = scan_number(text);
    const bool is_decimal = number.kind == NumberKind::DECIMAL;
    if (is_decimal) approach_whole(number);
    if (number.kind == NumberKind::NONE || number.power < 0 || (is_decimal && number.is_cut)) return RM_WRONG_TYPE;
    const int64_t whole = number.as_int64();
    if (!number.fits_int64() || number.power > 0 || whole < low || whole > high) return RM_BEYOND_RANGE;
    value = whole;
    return RM_FITS;
  }

  RM_INLINE bool infer(Text text, Value &value, rm_column_counts &counts) const {
    const Number number = scan_number(text);
    if (number.kind != NumberKind::WHOLE || number.is_odd || !number.fits_int64()) return false;
    counts.classes |= RM_INT64_CLASS;
    counts.inexact_integers += !fits_bits(number.digits, 24);
    value = number.as_int64();
    return true;
  }
};

struct Floats {
  using Value = double;
  int64_t bits;   // significant ones that a whole number may have
  double beyond;  // values from here on are out of range

  RM_INLINE int64_t parse(Text text, Value &value) const {
    const Number number = scan_number(text);
    if (number.kind == NumberKind::NONE) return word_number(text, value) ? RM_FITS : RM_WRONG_TYPE;
    const Rounded rounded = magnitude(number);
    value = number.is_negative ? -rounded.value : rounded.value;
    const bool is_whole = number.kind == NumberKind::WHOLE;
    if (!rounded.is_decided || (is_whole && number.is_long)) return RM_UNDECIDED;
    if (rounded.value >= beyond) return RM_BEYOND_RANGE;
    return is_whole && !fits_bits(number.digits, bits) ? RM_INEXACT : RM_FITS;
  }

  RM_INLINE bool infer(Text text, Value &value, rm_column_counts &counts) const {
    const Number number = scan_number(text);
    if (number.kind == NumberKind::NONE) {
      if (!word_number(text, value)) return false;
      counts.classes |= RM_FLOAT32_CLASS;
      return true;
    }
    const Rounded rounded = magnitude(number);
    if (!rounded.is_decided || number.is_odd) return false;
    if (number.kind == NumberKind::WHOLE) {
      if (!number.fits_int64() || !fits_bits(number.digits, 24)) return false;
      counts.classes |= RM_INT64_CLASS;
    } else {
      const Loss loss = decimal_loss(number);
      if (loss == Loss::OVERFLOW) return false;
      counts.classes |= RM_FLOAT32_CLASS;
      counts.inexact_decimals += loss == Loss::DECIMAL;
    }
    value = number.is_negative ? -rounded.value : rounded.value;
    return true;
  }
};

struct Booleans {
  using Value = uint8_t;

  RM_INLINE int64_t parse(Text text, Value &value) const {
    int found = truth(text);
    if (found < 0 && text.size() == 1 && (text[0] | 1) == '1') found = text[0] - '0';
    if (found < 0) return RM_WRONG_TYPE;
    value = static_cast<uint8_t>(found);
    return RM_FITS;
  }
};

struct Timestamps {
  using Value = int64_t;
  int64_t nanos_per_unit;
  bool is_aware;

  RM_INLINE int64_t units(const Timestamp &time) const {
    return time.seconds * (1'000'000'000 / nanos_per_unit) + time.nanos / nanos_per_unit;
  }

  RM_INLINE int64_t parse(Text text, Value &value) const {
    const Timestamp time = scan_timestamp(text);
    if (time.unit == 0) return RM_WRONG_TYPE;
    if (time.has_zone != is_aware) return time.has_zone ? RM_HAS_ZONE : RM_NO_ZONE;
    if (time.nanos % nanos_per_unit != 0) return RM_TOO_FINE;
    if (nanos_per_unit == 1 && (time.classes() & RM_BEYOND_NANOS_CLASS)) return RM_BEYOND_RANGE;
    value = units(time);
    return RM_FITS;
  }

  RM_INLINE bool infer(Text text, Value &value, rm_column_counts &counts) const {
    const Timestamp time = scan_timestamp(text);
    const int64_t classes = time.classes();
    if (classes == 0 || time.has_zone != is_aware || time.nanos % nanos_per_unit != 0) return false;
    if (nanos_per_unit == 1 && (classes & RM_BEYOND_NANOS_CLASS)) return false;
    counts.classes |= classes;
    value = units(time);
    return true;
  }
};

// Room for a column's values; `valid` and `fault` are 1 and 0 everywhere when it is given.
template <typename Value>
struct Column {
  Span<Value> values;
  Span<uint8_t> valid, fault;
};

template <typename Kind>
int64_t parse_column(Fields fields, Kind kind, Column<typename Kind::Value> column, rm_field_totals *totals) {
  const int64_t rows = fields.starts.size;
  if (!fields.is_valid() || column.values.size < rows || column.valid.size < rows || column.fault.size < rows)
    return RM_BOUNDS;
  *totals = {};
  for (int64_t row = 0; row < rows; row++) {
    Text text;
    if (!fields.get(row, text)) return RM_BOUNDS;
    typename Kind::Value value = 0;
    if (fields.tokens.index_of(text) >= 0) {
      column.valid[row] = 0;
      totals->nulls++;
    } else if (const int64_t fault = kind.parse(text, value)) {
      column.fault[row] = static_cast<uint8_t>(fault);
      totals->faults++;
    }
    column.values[row] = value;
  }
  return 0;
}

// Counts a field that is a null token: a quoted one is a value of a column of text.
RM_INLINE void count_null(int64_t token, bool is_quoted, rm_column_counts &counts, Span<int64_t> nulls) {
  if (is_quoted) {
    counts.values++;
    counts.soft_nulls++;
  } else {
    nulls[token]++;
  }
}

// Up to the first field that is no plain value of the dtype; gives how many fields that are.
template <typename Kind>
int64_t infer_column(Fields fields, Kind kind, Column<typename Kind::Value> column, rm_column_counts *counts,
                     Span<int64_t> null_counts, rm_field_totals *totals) {
  const int64_t rows = fields.starts.size;
  if (!fields.is_valid() || column.values.size < rows || column.valid.size < rows) return RM_BOUNDS;
  if (null_counts.size < fields.tokens.ends.size) return RM_BOUNDS;
  *totals = {};
  for (int64_t row = 0; row < rows; row++) {
    Text text;
    if (!fields.get(row, text)) return RM_BOUNDS;
    typename Kind::Value value = 0;
    const int64_t token = fields.tokens.index_of(text);
    if (token >= 0) {
      count_null(token, fields.is_quoted(row), *counts, null_counts);
      column.valid[row] = 0;
      totals->nulls++;
    } else if (kind.infer(text, value, *counts)) {
      counts->values++;
    } else {
      return row;
    }
    column.values[row] = value;
  }
  return rows;
}

RM_INLINE bool is_ascii(const uint8_t *data, int64_t size) {
  uint8_t high = 0;
  for (int64_t i = 0; i < size; i++) high |= data[i];
  return high < 0x80;
}

// Copies a text; a short one by one move of 16 bytes, where both sides have room for it.
RM_INLINE void copy_text(Span<uint8_t> out, int64_t into, Span<const uint8_t> data, Text text) {
  if (text.size() <= 16 && data.size - text.start >= 16 && out.size - into >= 16)
    memcpy(out.data + into, data.data + text.start, 16);
  else
    memcpy(out.data + into, data.data + text.start, text.size());
}

}  // namespace
}  // namespace rm

using namespace rm;

// The first parameters of all entries: where the fields of a column lie. RM_TAKE_FIELDS makes `fields` of them.
#define RM_FIELDS                                                                                                    \
  const uint8_t *data, int64_t data_size, const int32_t *starts, int64_t starts_size, const int32_t *infos,          \
      int64_t infos_size, const uint8_t *tokens, int64_t tokens_size, const int64_t *token_ends, int64_t token_ends_size
#define RM_TAKE_FIELDS                                                                                               \
  Fields fields = {{data, data_size}, {starts, starts_size}, {infos, infos_size},                                    \
                   {{tokens, tokens_size}, {token_ends, token_ends_size}, 0}}

RM_EXPORT int64_t rm_infer_fields(RM_FIELDS, rm_column_counts *counts, int64_t *null_counts, int64_t null_counts_size) {
  RM_TAKE_FIELDS;
  if (!fields.is_valid() || null_counts_size < token_ends_size) return RM_BOUNDS;
  bool is_text = counts->classes & RM_TEXT_CLASS;
  for (int64_t row = 0; row < starts_size; row++) {
    Text text;
    if (!fields.get(row, text)) return RM_BOUNDS;
    if (const int64_t token = fields.tokens.index_of(text); token >= 0) {
      count_null(token, fields.is_quoted(row), *counts, {null_counts, null_counts_size});
      continue;
    }
    counts->values++;
    if (is_text) continue;
    const Class found = classify(text);
    counts->classes |= found.bits;
    is_text = found.bits == RM_TEXT_CLASS;
    counts->inexact_decimals += found.loss == Loss::DECIMAL;
    counts->inexact_integers += found.loss == Loss::INTEGER;
    counts->overflows += found.loss == Loss::OVERFLOW;
  }
  return 0;
}

RM_EXPORT int64_t rm_infer_integers(RM_FIELDS, rm_column_counts *counts, int64_t *null_counts, int64_t null_counts_size,
                                    int64_t *values, int64_t values_size, uint8_t *valid, int64_t valid_size,
                                    rm_field_totals *totals) {
  RM_TAKE_FIELDS;
  return infer_column(fields, Integers{},
                      {{values, values_size}, {valid, valid_size}, {}},
                      counts, {null_counts, null_counts_size}, totals);
}

RM_EXPORT int64_t rm_infer_floats(RM_FIELDS, rm_column_counts *counts, int64_t *null_counts, int64_t null_counts_size,
                                  double *values, int64_t values_size, uint8_t *valid, int64_t valid_size,
                                  rm_field_totals *totals) {
  RM_TAKE_FIELDS;
  return infer_column(fields, Floats{},
                      {{values, values_size}, {valid, valid_size}, {}},
                      counts, {null_counts, null_counts_size}, totals);
}

RM_EXPORT int64_t rm_infer_timestamps(RM_FIELDS, int64_t nanos_per_unit, int64_t is_aware, rm_column_counts *counts,
                                      int64_t *null_counts, int64_t null_counts_size, int64_t *values,
                                      int64_t values_size, uint8_t *valid, int64_t valid_size,
                                      rm_field_totals *totals) {
  if (nanos_per_unit <= 0) return RM_BOUNDS;
  RM_TAKE_FIELDS;
  return infer_column(fields, Timestamps{nanos_per_unit, is_aware != 0},
                      {{values, values_size}, {valid, valid_size}, {}},
                      counts, {null_counts, null_counts_size}, totals);
}

RM_EXPORT int64_t rm_parse_integers(RM_FIELDS, int64_t low, int64_t high, int64_t *values, int64_t values_size,
                                    uint8_t *valid, int64_t valid_size, uint8_t *fault, int64_t fault_size,
                                    rm_field_totals *totals) {
  RM_TAKE_FIELDS;
  return parse_column(fields, Integers{low, high},
                      {{values, values_size}, {valid, valid_size}, {fault, fault_size}}, totals);
}

RM_EXPORT int64_t rm_parse_floats(RM_FIELDS, int64_t bits, double beyond, double *values, int64_t values_size,
                                  uint8_t *valid, int64_t valid_size, uint8_t *fault, int64_t fault_size,
                                  rm_field_totals *totals) {
  if (bits < 0 || bits > 63) return RM_BOUNDS;
  RM_TAKE_FIELDS;
  return parse_column(fields, Floats{bits, beyond},
                      {{values, values_size}, {valid, valid_size}, {fault, fault_size}}, totals);
}

RM_EXPORT int64_t rm_parse_booleans(RM_FIELDS, uint8_t *values, int64_t values_size, uint8_t *valid, int64_t valid_size,
                                    uint8_t *fault, int64_t fault_size, rm_field_totals *totals) {
  RM_TAKE_FIELDS;
  return parse_column(fields, Booleans{}, {{values, values_size}, {valid, valid_size}, {fault, fault_size}}, totals);
}

RM_EXPORT int64_t rm_parse_timestamps(RM_FIELDS, int64_t nanos_per_unit, int64_t is_aware, int64_t *values,
                                      int64_t values_size, uint8_t *valid, int64_t valid_size, uint8_t *fault,
                                      int64_t fault_size, rm_field_totals *totals) {
  if (nanos_per_unit <= 0) return RM_BOUNDS;
  RM_TAKE_FIELDS;
  return parse_column(fields, Timestamps{nanos_per_unit, is_aware != 0},
                      {{values, values_size}, {valid, valid_size}, {fault, fault_size}}, totals);
}

RM_EXPORT int64_t rm_text_bytes(const int32_t *infos, int64_t infos_size) {
  int64_t total = 0;
  for (int64_t row = 0; row < infos_size; row++) total += infos[row] & RM_FIELD_LENGTH;
  return total;
}

RM_EXPORT int64_t rm_parse_texts(RM_FIELDS, int64_t *offsets, int64_t offsets_size, uint8_t *out, int64_t out_size,
                                 uint8_t *valid, int64_t valid_size, uint8_t *fault, int64_t fault_size,
                                 rm_field_totals *totals) {
  RM_TAKE_FIELDS;
  const bool is_bytes = fault == nullptr;
  if (!fields.is_valid() || offsets_size < starts_size + 1 || valid_size < starts_size) return RM_BOUNDS;
  if (!is_bytes && fault_size < starts_size) return RM_BOUNDS;
  *totals = {};
  int64_t into = 0;
  offsets[0] = 0;
  for (int64_t row = 0; row < starts_size; row++) {
    Text text;
    if (!fields.get(row, text)) return RM_BOUNDS;
    if (!fields.is_quoted(row) && fields.tokens.index_of(text) >= 0) {
      valid[row] = 0;
      totals->nulls++;
    } else {
      if (text.size() > out_size - into) return RM_BOUNDS;
      copy_text({out, out_size}, into, fields.data, text);
      into += text.size();
    }
    offsets[row + 1] = into;
  }
  if (is_bytes || is_ascii(out, into)) return 0;
  for (int64_t row = 0; row < starts_size; row++) {
    if (find_bad_utf8(out, offsets[row], offsets[row + 1]) < 0) continue;
    fault[row] = RM_FIELD_NOT_UTF8;
    totals->faults++;
  }
  return 0;
}

RM_EXPORT int64_t rm_count_texts(RM_FIELDS, int64_t *first, int64_t first_size, int64_t *counts, int64_t counts_size,
                                 rm_text_totals *totals) {
  RM_TAKE_FIELDS;
  if (!fields.is_valid() || counts_size < first_size) return RM_BOUNDS;
  *totals = {};
  for (int64_t row = 0; row < starts_size; row++) {
    Text text, other;
    if (!fields.get(row, text)) return RM_BOUNDS;
    if (fields.tokens.index_of(text) >= 0) continue;
    totals->values++;
    if (const int64_t bits = classify(text).bits; bits != RM_TEXT_CLASS) {
      totals->classes |= bits;
      continue;
    }
    totals->texts++;
    const int64_t known = min(totals->different, first_size);
    int64_t word = 0;
    for (; word < known; word++) {
      fields.get(first[word], other);
      if (text.size() == other.size() && !memcmp(data + text.start, data + other.start, text.size())) break;
    }
    if (word < known) {
      counts[word]++;
    } else if (word == totals->different) {
      totals->different++;
      if (word < first_size) {
        first[word] = row;
        counts[word] = 1;
      }
    }
  }
  return 0;
}
