// Numbers and strings on a tape of JSON values: numbers as columns hold them, and what is seen at each place.
#include "json.h"
#include "numbers.h"

namespace rm {
namespace {

struct Tape {
  Bytes data;
  Span<const JsonValue> values;

  RM_INLINE bool holds_text(const JsonValue &value) const {
    return data.holds(value.start, int64_t{value.stop} - value.start);
  }
  RM_INLINE Text text(const JsonValue &value) const { return {data.data, value.start, value.stop}; }
};

RM_INLINE bool is_number(const JsonValue &value) {
  return value.kind() == RM_JSON_INT || value.kind() == RM_JSON_FLOAT;
}

// Gives put(i, number, value) each entry that is a number; false where entries do not fit the tape.
template <typename Value, typename Put>
RM_INLINE bool for_numbers(Tape tape, Span<const int32_t> entries, Span<Value> values, Span<uint8_t> faults, Put put) {
  if (values.size != entries.size || faults.size != entries.size) return false;
  for (int64_t i = 0; i < entries.size; i++) {
    if (!tape.values.holds(entries[i], 1)) return false;
    const JsonValue &value = tape.values[entries[i]];
    values[i] = 0;
    faults[i] = RM_FITS;
    if (!is_number(value)) continue;
    if (!tape.holds_text(value)) return false;
    put(i, scan_number(tape.text(value)), value);
  }
  return true;
}

// Where float32, or int64, does not hold a number; RM_JSON_LOSSES if it does.
RM_INLINE int loss_of(const Number &number) {
  if (number.kind == NumberKind::DECIMAL) {
    const Loss loss = decimal_loss(number);
    return loss == Loss::DECIMAL ? RM_JSON_DECIMAL : loss == Loss::OVERFLOW ? RM_JSON_OVERFLOW : RM_JSON_LOSSES;
  }
  if (number.kind == NumberKind::NONE) return RM_JSON_LOSSES;
  if (!number.fits_int64()) return RM_JSON_BEYOND_INT64;
  return fits_bits(number.digits, 24) ? RM_JSON_LOSSES : RM_JSON_INTEGER;
}

constexpr int EXACT_BYTES = 7;  // every whole number of up to 7 bytes (6 digits and a sign) is exact as float32

}  // namespace
}  // namespace rm

using namespace rm;

RM_EXPORT int64_t rm_parse_json_floats(const uint8_t *data, int64_t data_size, const int32_t *tape, int64_t tape_size,
                                       const int32_t *entries, int64_t entries_size, int64_t bits, double *values,
                                       int64_t values_size, uint8_t *faults, int64_t faults_size) {
  if (bits < 1 || bits > 63) return RM_BOUNDS;
  const Tape whole = {{data, data_size}, spans_of<const JsonValue>(tape, tape_size)};
  const auto put = [&](int64_t i, const Number &number, const JsonValue &value) {
    if (number.kind == NumberKind::NONE) {
      word_number(whole.text(value), values[i]);
      return;
    }
    const Rounded rounded = magnitude(number);
    values[i] = number.is_negative ? -rounded.value : rounded.value;
    if (!rounded.is_decided)
      faults[i] = RM_UNDECIDED;
    else if (__builtin_isinf(rounded.value))
      faults[i] = RM_BEYOND_RANGE;
    else if (value.kind() == RM_JSON_INT && (number.is_long || !fits_bits(number.digits, bits)))
      faults[i] = RM_INEXACT;
  };
  return for_numbers<double>(whole, {entries, entries_size}, {values, values_size}, {faults, faults_size}, put)
             ? 0 : RM_BOUNDS;
}

RM_EXPORT int64_t rm_parse_json_integers(const uint8_t *data, int64_t data_size, const int32_t *tape,
                                         int64_t tape_size, const int32_t *entries, int64_t entries_size,
                                         int64_t is_unsigned, int64_t *values, int64_t values_size, uint8_t *faults,
                                         int64_t faults_size) {
  const Tape whole = {{data, data_size}, spans_of<const JsonValue>(tape, tape_size)};
  const auto put = [&](int64_t i, Number number, const JsonValue &) {
    const bool is_word = number.kind == NumberKind::NONE;
    approach_whole(number);
    const bool fits = is_unsigned ? !number.is_negative || number.digits == 0
                                  : number.digits <= static_cast<uint64_t>(INT64_MAX) + number.is_negative;
    if (is_word || number.power != 0 || number.is_cut || !fits) faults[i] = RM_BEYOND_RANGE;
    values[i] = number.as_int64();
  };
  return for_numbers<int64_t>(whole, {entries, entries_size}, {values, values_size}, {faults, faults_size}, put)
             ? 0 : RM_BOUNDS;
}

RM_EXPORT int64_t rm_count_json_values(const uint8_t *data, int64_t data_size, const int32_t *tape, int64_t tape_size,
                                       int64_t *counts, int64_t counts_size, int64_t *first, int64_t first_size,
                                       int64_t *losses, int64_t losses_size, int64_t *classes, int64_t classes_size) {
  const Tape whole = {{data, data_size}, spans_of<const JsonValue>(tape, tape_size)};
  const int64_t nodes = classes_size;
  if (counts_size != nodes * RM_JSON_KINDS || first_size != counts_size || losses_size != nodes * RM_JSON_LOSSES)
    return RM_BOUNDS;
  for (int64_t entry = 0; entry < whole.values.size; entry++) {
    const JsonValue &value = whole.values[entry];
    const int64_t node = value.node(), kind = value.kind();
    if (node < 0 || node >= nodes || kind >= RM_JSON_KINDS) return RM_BOUNDS;
    const int64_t place = node * RM_JSON_KINDS + kind;
    if (counts[place]++ == 0) first[place] = entry;
    const bool may_lose = kind == RM_JSON_FLOAT || (kind == RM_JSON_INT && value.stop - value.start > EXACT_BYTES);
    const bool may_be_time = kind == RM_JSON_STRING && !(classes[node] & RM_TEXT_CLASS);
    if (!may_lose && !may_be_time) continue;
    if (!whole.holds_text(value)) return RM_BOUNDS;
    if (may_be_time) {
      const int64_t time = scan_timestamp(whole.text(value)).classes();
      classes[node] |= time ? time : int64_t{RM_TEXT_CLASS};
    } else if (const int loss = loss_of(scan_number(whole.text(value))); loss != RM_JSON_LOSSES) {
      losses[node * RM_JSON_LOSSES + loss]++;
    }
  }
  return 0;
}
