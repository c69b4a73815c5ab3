// Texts of numbers, truth values and times: what they are, and their values. One grammar for CSV fields, JSON scalars
// and columns of text.
#pragma once

#include "recordmill.h"

namespace rm {

// The bytes [start, stop) of a buffer. What stands before a text in its buffer may be read, what follows it not.
struct Text {
  const uint8_t *data;
  int64_t start, stop;

  RM_INLINE int64_t size() const { return stop - start; }
  RM_INLINE uint8_t operator[](int64_t index) const { return data[start + index]; }
};

RM_INLINE bool is_digit(uint8_t byte) { return static_cast<uint8_t>(byte - '0') <= 9; }

enum class NumberKind : uint8_t { NONE, WHOLE, DECIMAL };

// ±digits * 10^power. `digits` holds the first 19 from the first nonzero one on.
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

  int64_t classes() const;
};

Number scan_any_number(Text text);  // the general form of scan_number
Rounded magnitude(const Number &number);  // without the sign
void approach_whole(Number &number);  // the same number with a power nearer to 0
bool word_number(Text text, double &value);  // nan, inf, infinity in any case
int truth(Text text);  // 1: true, 0: false (lower, upper, capital case), -1: neither
int decimal_loss_exactly(const Number &number);  // where digits may be lost
Timestamp scan_timestamp(Text text);  // ISO 8601, see numbers.cpp
int64_t class_of_word(Text text);  // of a text that is no number and no time

// Whether a whole number has at most `bits` bits between its first and its last set one.
RM_INLINE bool fits_bits(uint64_t digits, int64_t bits) {
  return digits <= uint64_t{1} << bits || digits >> __builtin_ctzll(digits) <= uint64_t{1} << bits;
}

// 1 to 8 digits with at most one point among them; points is -1 for any other text.
struct Digits {
  int points;
  int fraction;  // digits after the point
  uint64_t value;
};

// Without a branch per digit: the eight bytes that end the text are one word, those before the text made `0`, the point
// taken out by moving what stands before it. Reads 8 bytes before `stop`.
RM_INLINE Digits digits_of_word(const uint8_t *stop, int64_t size) {
  const uint64_t keep = ~uint64_t{0} << (8 * (8 - size));
  uint64_t word = (load<uint64_t>(stop - 8) & keep) | (0x3030303030303030 & ~keep);
  const uint64_t other = word ^ 0x2E2E2E2E2E2E2E2E;  // a byte is 0 where the point is
  const uint64_t rest = 0x7F7F7F7F7F7F7F7F;
  const uint64_t found = ~(((other & rest) + rest) | other | rest);  // bit 7 of those bytes
  Digits digits = {0, 0, 0};
  if (found) {
    if (found & (found - 1)) return {-1, 0, 0};
    const int place = first_bit(found) >> 3;
    const uint64_t before = (uint64_t{1} << (8 * place)) - 1;
    const uint64_t after = ~before & ~(uint64_t{0xFF} << (8 * place));
    word = (word & after) | ((word & before) << 8) | 0x30;
    digits.points = 1;
    digits.fraction = 7 - place;
  }
  const uint64_t high = 0xF0F0F0F0F0F0F0F0;
  if (((word & high) | (((word + 0x0606060606060606) & high) >> 4)) != 0x3333333333333333) return {-1, 0, 0};
  word -= 0x3030303030303030;
  word = word * 10 + (word >> 8);  // pairs of digits, then fours, then all eight (D. Lemire)
  const uint64_t fours = 0x000000FF000000FF;
  digits.value = ((word & fours) * 0x000F424000000064 + ((word >> 16) & fours) * 0x0000271000000001) >> 32;
  return digits;
}

// `-?digits[.digits][e±digits]`, or with a plus sign or without digits on one side of the point.
RM_INLINE Number scan_number(Text text) {
  if (text.size() <= 0) return {};
  const uint8_t sign = text[0];
  const bool has_sign = sign == '-' || sign == '+';
  const int64_t first = text.start + has_sign, size = text.stop - first;
  Digits digits = {-1, 0, 0};
  if (size > 0 && size <= 8 && text.stop >= 8) {
    digits = digits_of_word(text.data + text.stop, size);
  } else if (size > 8 && size <= 16 && text.stop >= 16) {
    digits = digits_of_word(text.data + text.stop - 8, size - 8);
    const Digits last = digits_of_word(text.data + text.stop, 8);
    digits.fraction = digits.points == 0 ? last.fraction : digits.fraction + 8;
    digits.value = digits.value * (last.points == 0 ? 100'000'000 : 10'000'000) + last.value;
    digits.points = digits.points < 0 || last.points < 0 ? -1 : digits.points + last.points;
  }
  if (digits.points < 0 || digits.points > 1 || size == digits.points) return scan_any_number(text);
  const bool is_odd = sign == '+' || (size - digits.points - digits.fraction > 1 && text.data[first] == '0');
  const NumberKind kind = digits.points ? NumberKind::DECIMAL : NumberKind::WHOLE;
  return {kind, is_odd, sign == '-', false, false, digits.value, -digits.fraction};
}

// What float32 loses of a decimal. 6 digits always survive (FLT_DIG).
RM_INLINE int decimal_loss(const Number &number) {
  if (number.digits < 1'000'000 && (number.digits == 0 || (number.power > -36 && number.power < 32))) return NO_LOSS;
  return decimal_loss_exactly(number);
}

// What a number is as a value of a column that is not declared: whole ones beyond int64 are text.
RM_INLINE Class class_of(const Number &number) {
  if (number.kind == NumberKind::NONE || number.is_odd) return {TEXT_CLASS, NO_LOSS};
  if (number.kind == NumberKind::DECIMAL) return {FLOAT32_CLASS, decimal_loss(number)};
  if (!number.fits_int64()) return {TEXT_CLASS, BEYOND_INT64};
  return {INT64_CLASS, fits_bits(number.digits, 24) ? NO_LOSS : INEXACT_INTEGER};
}

// What a text is that is no null.
RM_INLINE Class classify(Text text) {
  if (text.size() <= 0) return {TEXT_CLASS, NO_LOSS};
  const uint8_t first = text[0];
  if (is_digit(first) || first == '-' || first == '.') {
    if (text.size() >= 10 && text[4] == '-')
      if (const int64_t bits = scan_timestamp(text).classes()) return {bits, NO_LOSS};
    const Number number = scan_number(text);
    if (number.kind != NumberKind::NONE) return class_of(number);
  }
  return {class_of_word(text), NO_LOSS};
}

}  // namespace rm
