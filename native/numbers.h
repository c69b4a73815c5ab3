// Texts of numbers, truth values and times: what they are, and their values. One grammar for CSV fields, JSON scalars
// and columns of text.
#pragma once

#include "recordmill.h"

namespace rm {

RM_INLINE bool is_digit(uint8_t byte) { return static_cast<uint8_t>(byte - '0') <= 9; }

enum class NumberKind : uint8_t { NONE, WHOLE, DECIMAL, WORD };

// ±digits * 10^power. `digits` holds the first 19 from the first nonzero one on; of a WORD 0 for nan, 1 for inf.
struct Number {
  NumberKind kind;
  bool is_odd;  // a plus sign or a leading zero: text, unless the user declares the column as numbers
  bool is_negative;
  bool is_long;  // there are more than 19 digits
  bool is_cut;   // and not all of those left out are 0
  uint64_t digits;
  int64_t power;

  // Whether a whole number is in int64's range.
  RM_INLINE bool fits_int64() const { return !is_long && digits <= static_cast<uint64_t>(INT64_MAX) + is_negative; }
  RM_INLINE int64_t as_int64() const { return static_cast<int64_t>(is_negative ? 0 - digits : digits); }
};

// A float64, and whether it is the nearest one; if not, Python's float() must tell.
struct Rounded {
  double value;
  bool is_decided;
};

struct Class {
  int64_t bits;  // BOOL_CLASS and so on; 0 if there is none
  int loss;      // NO_LOSS, INEXACT_DECIMAL and so on
};

struct Timestamp {
  int64_t unit;  // SECONDS_CLASS ... NANOS_CLASS, the coarsest that holds it; 0 if the text is no timestamp
  bool has_zone;
  int64_t seconds, nanos;  // since 1970 in UTC
};

// `-?digits[.digits][e±digits]`, or with a plus sign or without digits on one side of the point; or a word: nan, inf or
// infinity in any case.
Number scan_number(ByteSpan text);
Rounded magnitude(const Number &number);  // without the sign
void approach_whole(Number &number);  // the same number with a power nearer to 0
int truth(ByteSpan text);  // 1: true, 0: false (lower, upper, capital case), -1: neither
int decimal_loss(const Number &number);  // what float32 loses of it
Timestamp scan_timestamp(ByteSpan text);  // ISO 8601, see numbers.cpp
Class class_of(const Timestamp &time);  // without bits where there is none
Class classify(ByteSpan text);  // what a text is that is no null

// Whether a whole number has at most `bits` bits between its first and its last set one.
RM_INLINE bool fits_bits(uint64_t digits, int64_t bits) {
  return digits <= uint64_t{1} << bits || digits >> __builtin_ctzll(digits) <= uint64_t{1} << bits;
}

// What a number is as a value of a column that is not declared: whole ones beyond int64 are text.
RM_INLINE Class class_of(const Number &number) {
  if (number.kind == NumberKind::NONE || number.is_odd) return {TEXT_CLASS, NO_LOSS};
  if (number.kind == NumberKind::WORD) return {FLOAT32_CLASS, NO_LOSS};
  if (number.kind == NumberKind::DECIMAL) return {FLOAT32_CLASS, decimal_loss(number)};
  if (!number.fits_int64()) return {TEXT_CLASS, BEYOND_INT64};
  return {INT64_CLASS, fits_bits(number.digits, 24) ? NO_LOSS : INEXACT_INTEGER};
}

}  // namespace rm
