// Classification and parsing of texts with numbers, booleans and timestamps. CSV fields, JSON scalars and columns of text
// share this grammar.
#pragma once

#include "recordmill.h"

namespace rm {

RM_INLINE bool is_digit(uint8_t byte) { return static_cast<uint8_t>(byte - '0') <= 9; }

enum class NumberKind : uint8_t { NONE, WHOLE, DECIMAL, WORD };

// A number, ±digits * 10^power.
struct Number {
  NumberKind kind;
  bool is_odd;       // has a plus sign or a leading zero, such as a zip code: text, unless the column is declared as numbers
  bool is_negative;
  bool is_long;      // has more than 19 digits
  bool is_cut;       // has more than 19 digits, and not all digits after the first 19 are 0
  uint64_t digits;   // the first 19 digits from the first nonzero one on; for a WORD, 0 is nan and 1 is inf
  int64_t power;

  // Returns whether a whole number fits int64.
  RM_INLINE bool fits_int64() const { return !is_long && digits <= static_cast<uint64_t>(INT64_MAX) + is_negative; }
  RM_INLINE int64_t as_int64() const { return static_cast<int64_t>(is_negative ? 0 - digits : digits); }
};

// The float64 of a number.
struct Rounded {
  double value;
  bool is_decided;  // it is certainly the nearest one. Otherwise Python's float() must round the text
};

struct Class {
  int64_t bits;  // of TextClass; 0 if there are none
  NumberLoss loss;
};

struct Timestamp {
  int64_t unit;  // the bit of TextClass for the coarsest unit that holds it; 0 if the text is not a timestamp
  bool has_zone;
  int64_t seconds, nanos;  // since 1970 in UTC
};

// Reads `-?digits[.digits][e±digits]`. A plus sign, or no digits on one side of the point, is accepted too, and so are the
// words nan, inf and infinity in any case.
Number scan_number(ByteSpan text);
// Returns the float64 of a number without its sign.
Rounded magnitude(const Number &number);
// Returns whether a float with a shorter mantissa can round a float64 differently than the number that it was rounded from.
// It can if the float64 is halfway between two of these floats. Below the smallest normal float, the result is also true
// for other values.
// value: not negative.
RM_INLINE bool can_round_twice(double value, int64_t mantissa_bits) {
  if (mantissa_bits >= 53) return false;
  const uint64_t half = uint64_t{1} << (52 - mantissa_bits), bits = load<uint64_t>(reinterpret_cast<const uint8_t *>(&value));
  const double smallest_normal = mantissa_bits == 11 ? 0x1p-14 : 0x1p-126;  // of float16; of float32 and bfloat16
  if (RM_LIKELY(value >= smallest_normal)) return (bits & (2 * half - 1)) == half;
  return value > 0x1p-1022 && (bits & (half - 1)) == 0;
}
// Replaces a float64 for which can_round_twice is true by its neighbor towards the number, unless it equals the number. The
// mantissa of the neighbor is odd, so that rounding it to a shorter mantissa rounds the number.
// value: the magnitude of the number.
Rounded round_to_odd(const Number &number, double value);
// Brings the power as near to 0 as possible without changing the number: 50e-1 becomes 5e0.
void normalize_power(Number &number);
// Returns 1 for true, 0 for false (in lower, upper or capital case), -1 for any other text.
int scan_bool(ByteSpan text);
// Returns the loss if a decimal is stored as float32.
NumberLoss decimal_loss(const Number &number);
// Reads an ISO 8601 timestamp; the forms are listed in numbers.cpp.
Timestamp scan_timestamp(ByteSpan text);
// Returns the class of a timestamp. The class has no bits if the text was not a timestamp.
Class class_of(const Timestamp &time);
// Returns the class of any text that is not a null token.
Class classify(ByteSpan text);

// Returns whether a whole number has at most `bits` bits from its first to its last set one, so that a float with a mantissa
// of that size holds it.
RM_INLINE bool fits_bits(uint64_t digits, int64_t bits) {
  return digits <= uint64_t{1} << bits || digits >> __builtin_ctzll(digits) <= uint64_t{1} << bits;
}

// Returns the class of a number in a column without a declared type. Whole numbers beyond int64 are text.
RM_INLINE Class class_of(const Number &number) {
  if (number.kind == NumberKind::NONE || number.is_odd) return {TextClass::TEXT, NumberLoss::NONE};
  if (number.kind == NumberKind::WORD) return {TextClass::FLOAT32, NumberLoss::NONE};
  if (number.kind == NumberKind::DECIMAL) return {TextClass::FLOAT32, decimal_loss(number)};
  if (!number.fits_int64()) return {TextClass::TEXT, NumberLoss::BEYOND_INT64};
  return {TextClass::INT64, fits_bits(number.digits, 24) ? NumberLoss::NONE : NumberLoss::INEXACT_INTEGER};
}

}  // namespace rm
