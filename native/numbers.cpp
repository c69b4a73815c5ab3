// Parses numbers, booleans and timestamps.
#include "numbers.h"

namespace rm {
namespace {

constexpr double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                           1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};  // exact as float64
constexpr int64_t EXACT_TENS = 22;
constexpr uint64_t EXACT_INTEGERS = uint64_t{1} << 53;  // integers up to here are exact as float64

// The algorithm of Eisel and Lemire multiplies the digits by the first 128 bits of a power of five. Only integers are
// used, so that every platform computes the same bits. Lemire, "Number parsing at a gigabyte per second", 2021. That 128
// bits always decide how to round is proved by Mushtak and Lemire, "Fast number parsing without fallback", 2023.
constexpr int64_t MIN_POWER = -342;  // below 10^-342 even 19 digits round to 0
constexpr int64_t MAX_POWER = 308;   // above 10^308 even 1 rounds to inf

using Wide = unsigned __int128;

struct Product {
  uint64_t high, low;
};

RM_INLINE Product multiply(uint64_t left, uint64_t right) {
  const Wide product = static_cast<Wide>(left) * right;
  return {static_cast<uint64_t>(product >> 64), static_cast<uint64_t>(product)};
}

// The first 128 bits of 5^MIN_POWER to 5^MAX_POWER, shifted so that the highest one is set. Computed by the compiler.
struct FivePowers {
  Product values[MAX_POWER - MIN_POWER + 1];

  constexpr FivePowers() : values() {
    // 192 bits, the highest word first. The 64 bits more absorb the rounding of all steps.
    uint64_t up[3] = {uint64_t{1} << 63, 0, 0}, down[3] = {uint64_t{1} << 63, 0, 0};
    for (int64_t power = 0; power <= MAX_POWER; power++) {
      values[power - MIN_POWER] = {up[0], up[1]};
      times_five(up);
    }
    for (int64_t power = -1; power >= MIN_POWER; power--) {
      divide_by_five(down);
      // The algorithm needs reciprocals rounded up, where they are used exactly.
      const Wide value = (static_cast<Wide>(down[0]) << 64 | down[1]) + (power >= -27);
      values[power - MIN_POWER] = {static_cast<uint64_t>(value >> 64), static_cast<uint64_t>(value)};
    }
  }

  static constexpr void times_five(uint64_t (&words)[3]) {
    Wide carry = 0;
    for (int i = 2; i >= 0; i--) {
      carry += static_cast<Wide>(words[i]) * 5;
      words[i] = static_cast<uint64_t>(carry);
      carry >>= 64;
    }
    const int shift = carry >= 4 ? 3 : 2;  // the bits of the carry: 5 * 2^63 and more needs 66 bits or 67
    words[2] = words[2] >> shift | words[1] << (64 - shift);
    words[1] = words[1] >> shift | words[0] << (64 - shift);
    words[0] = words[0] >> shift | static_cast<uint64_t>(carry) << (64 - shift);
  }

  static constexpr void divide_by_five(uint64_t (&words)[3]) {
    uint64_t quotient[4] = {}, remainder = 0;
    for (int i = 0; i < 4; i++) {
      const Wide dividend = static_cast<Wide>(remainder) << 64 | (i < 3 ? words[i] : 0);
      quotient[i] = static_cast<uint64_t>(dividend / 5);
      remainder = static_cast<uint64_t>(dividend % 5);
    }
    const int shift = quotient[0] >> 61 ? 2 : 3;  // makes the highest bit 1 again
    for (int i = 0; i < 3; i++) words[i] = quotient[i] << shift | quotient[i + 1] >> (64 - shift);
  }
};

constexpr FivePowers FIVE_POWERS;

// Rounds digits * 10^power to the nearest float64, ties to even.
__attribute__((noinline)) double scale_exactly(uint64_t digits, int64_t power) {
  constexpr int MANTISSA_BITS = 52;           // of a float64, without the leading 1
  constexpr int CUT = 64 - MANTISSA_BITS - 3;  // leaves the mantissa, its leading 1, a bit to round by, one to spare
  constexpr int64_t INFINITE_EXPONENT = 0x7FF;
  const auto double_of = [](uint64_t bits) { return load<double>(reinterpret_cast<const uint8_t *>(&bits)); };
  if (digits == 0 || power < MIN_POWER) return 0.0;
  if (power > MAX_POWER) return __builtin_inf();
  const int zeros = leading_zeros(digits);
  const Product five = FIVE_POWERS.values[power - MIN_POWER];
  Product product = multiply(digits << zeros, five.high);
  // The low half of the power matters only if it can carry into the bits that are kept.
  constexpr uint64_t SPARE = (uint64_t{1} << CUT) - 1;
  if ((product.high & SPARE) == SPARE) {
    const Product rest = multiply(digits << zeros, five.low);
    product.low += rest.high;
    product.high += product.low < rest.high;
  }
  const int upper = static_cast<int>(product.high >> 63);
  uint64_t mantissa = product.high >> (upper + CUT);
  // floor(power * log2(10)) by a fixed-point factor that is exact in this range
  int64_t exponent = ((217'706 * power) >> 16) + 63 + upper - zeros + 1023;
  if (exponent <= 0) {  // subnormal, or 0
    if (exponent <= -63) return 0.0;
    mantissa >>= 1 - exponent;
    mantissa = (mantissa + (mantissa & 1)) >> 1;
    return double_of(mantissa);  // a carry into bit 52 makes the smallest normal number
  }
  // A tie, which only these powers allow, goes to the even mantissa.
  if (product.low <= 1 && power >= -4 && power <= 23 && (mantissa & 3) == 1 && mantissa << (upper + CUT) == product.high)
    mantissa &= ~uint64_t{1};
  mantissa = (mantissa + (mantissa & 1)) >> 1;
  if (mantissa >> (MANTISSA_BITS + 1)) mantissa >>= 1, exponent++;
  if (exponent >= INFINITE_EXPONENT) return __builtin_inf();
  return double_of((mantissa & ((uint64_t{1} << MANTISSA_BITS) - 1)) | static_cast<uint64_t>(exponent) << MANTISSA_BITS);
}

// digits * 10^power; inf beyond float64.
RM_INLINE double scale(uint64_t digits, int64_t power) {
  if (RM_LIKELY(digits <= EXACT_INTEGERS && power >= -EXACT_TENS && power <= EXACT_TENS)) {
    const double value = static_cast<double>(digits);
    return power >= 0 ? value * TENS[power] : value / TENS[-power];
  }
  return scale_exactly(digits, power);
}

constexpr int MAX_DIGITS = 19;  // any number of 19 digits fits uint64
constexpr int64_t MAX_EXPONENT = 1'000'000;  // larger ones are cut: the value is 0 or inf anyway, and sums can't overflow

// Appends digits to a number. Returns the position after them. The number overflows if there are more than 19.
RM_INLINE const uint8_t *read_digits(const uint8_t *next, const uint8_t *end, uint64_t &number) {
  for (; next < end && is_digit(*next); next++) number = number * 10 + (*next - '0');
  return next;
}

// Reads the first 19 digits of a longer number. The digits may have a point among them.
void read_first_digits(Number &number, const uint8_t *begin, const uint8_t *end) {
  number.digits = 0;
  int64_t count = 0;  // digits from the first nonzero one on
  for (const uint8_t *next = begin; next < end; next++) {
    const uint8_t digit = *next - '0';
    if (*next == '.') continue;
    count += count > 0 || digit > 0;
    number.is_long = count > MAX_DIGITS;
    if (!number.is_long) number.digits = number.digits * 10 + digit;
    number.is_cut = number.is_cut || (number.is_long && digit > 0);
    number.power += number.is_long;
  }
}

// Adds an exponent, whose text begins with its `e`, to a power. Returns false if the text is not an exponent.
bool scan_exponent(ByteSpan text, int64_t &power) {
  const bool has_sign = text.size > 1 && (text[1] == '-' || text[1] == '+');
  if ((text[0] | 32) != 'e' || text.size == 1 + has_sign) return false;
  int64_t exponent = 0;
  for (int64_t at = 1 + has_sign; at < text.size; at++) {
    if (!is_digit(text[at])) return false;
    exponent = min(exponent * 10 + (text[at] - '0'), MAX_EXPONENT);
  }
  power += text[1] == '-' ? -exponent : exponent;
  return true;
}

// Returns whether text[start :] is a word, ignoring case. word: in lower case.
bool equals_word(ByteSpan text, int64_t start, const char *word) {
  int64_t at = start;
  for (; at < text.size && *word; at++, word++)
    if ((text[at] | 32) != *word) return false;
  return at == text.size && !*word;
}

// Reads nan, inf or infinity, each with an optional minus sign.
void scan_word(ByteSpan text, Number &number) {
  const bool is_nan = equals_word(text, number.is_negative, "nan");
  const bool is_inf = equals_word(text, number.is_negative, "inf") || equals_word(text, number.is_negative, "infinity");
  number.kind = is_nan || is_inf ? NumberKind::WORD : NumberKind::NONE;
  number.digits = is_inf;
  number.is_negative &= is_inf;
}

// Returns the number that two digits make; 9999 if they are not digits.
RM_INLINE int64_t two_digits(ByteSpan text, int64_t at) {
  return is_digit(text[at]) && is_digit(text[at + 1]) ? (text[at] - '0') * 10 + (text[at + 1] - '0') : 9999;
}

// Returns the days from 1970-01-01 to a date, from year 1 on (Howard Hinnant, "chrono-compatible low-level date algorithms").
int64_t days_since_1970(int64_t year, int64_t month, int64_t day) {
  if (month <= 2) year--;
  const int64_t era = year / 400, of_era = year - era * 400;
  const int64_t of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
  return era * 146'097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719'468;
}

int64_t days_of_month(int64_t year, int64_t month) {
  constexpr uint8_t DAYS[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const bool is_leap = month == 2 && year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
  return DAYS[month - 1] + is_leap;
}

// Returns the seconds of `HH:MM`; -1 if the text is not a time of day.
int64_t scan_clock(ByteSpan text, int64_t at) {
  const int64_t hour = two_digits(text, at), minute = two_digits(text, at + 3);
  return hour > 23 || minute > 59 || text[at + 2] != ':' ? -1 : hour * 3600 + minute * 60;
}

// Reads 1 to 9 digits after a point as nanoseconds, and sets the unit that they need. Moves `at` past them. Returns false if
// there is no digit.
bool scan_fraction(ByteSpan text, int64_t &at, Timestamp &time) {
  const int64_t first = at;
  for (; at < text.size && at - first < 9 && is_digit(text[at]); at++)
    time.nanos = time.nanos * 10 + (text[at] - '0');
  const int64_t digits = at - first;
  for (int64_t i = digits; i < 9; i++) time.nanos *= 10;
  time.unit = digits <= 3 ? TextClass::MILLIS : digits <= 6 ? TextClass::MICROS : TextClass::NANOS;
  return digits > 0;
}

}  // namespace

Number scan_number(ByteSpan text) {
  Number number = {};
  if (text.size <= 0) return number;
  const uint8_t sign = text[0], *const end = text.end();
  const uint8_t *const first = text.data + (sign == '-' || sign == '+');
  uint64_t digits = 0;
  const uint8_t *at = read_digits(first, end, digits);
  const int64_t whole = at - first;
  const bool has_point = at < end && *at == '.';
  if (has_point) at = read_digits(at + 1, end, digits);
  const int64_t count = at - first - has_point;
  number.digits = digits;
  number.power = whole - count;
  number.is_negative = sign == '-';
  number.is_odd = sign == '+' || (whole > 1 && *first == '0');
  number.kind = has_point || at < end ? NumberKind::DECIMAL : NumberKind::WHOLE;
  if (count > MAX_DIGITS) read_first_digits(number, first, at);
  if (count == 0) scan_word(text, number);
  else if (at < end && !scan_exponent({at, end - at}, number.power)) number.kind = NumberKind::NONE;
  return number;
}

Rounded magnitude(const Number &number) {
  if (number.kind == NumberKind::WORD) return {number.digits ? __builtin_inf() : __builtin_nan(""), true};
  const double value = scale(number.digits, number.power);
  if (RM_LIKELY(!number.is_cut)) return {value, true};
  return {value, scale_exactly(number.digits + 1, number.power) == value};
}

namespace {

constexpr int64_t MAX_FIVE = 27;  // 5^27 is the largest power of five that fits 64 bits

// Returns the sign of digits * 10^power - value, for the nearest value.
// power: -MAX_FIVE to MAX_FIVE. value: a normal float64.
int compare(uint64_t digits, int64_t power, double value) {
  const uint64_t bits = load<uint64_t>(reinterpret_cast<const uint8_t *>(&value));
  const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  const int zeros = __builtin_ctzll(mantissa);
  // digits * 5^power * 2^power is compared with (mantissa >> zeros) * 2^exponent. Both are nearly equal, so that neither
  // product exceeds 128 bits.
  const int64_t exponent = static_cast<int64_t>(bits >> 52) - 1075 + zeros;
  Wide left = digits, right = mantissa >> zeros;
  for (int64_t at = 0; at < power; at++) left *= 5;
  for (int64_t at = 0; at > power; at--) right *= 5;
  if (power > exponent) left <<= power - exponent;
  else right <<= exponent - power;
  return (left > right) - (left < right);
}

}  // namespace

Rounded round_to_odd(const Number &number, double value) {
  if (number.power < -MAX_FIVE || number.power > MAX_FIVE) return {value, false};
  int order = compare(number.digits, number.power, value);
  if (number.is_cut && order >= 0) order = 1;  // the digits that were left out make the number larger
  else if (number.is_cut && compare(number.digits + 1, number.power, value) > 0) return {value, false};
  const uint64_t bits = load<uint64_t>(reinterpret_cast<const uint8_t *>(&value)) + order;
  return {load<double>(reinterpret_cast<const uint8_t *>(&bits)), true};
}

void normalize_power(Number &number) {
  if (number.digits == 0) number.power = 0;
  for (; number.power < 0 && number.digits % 10 == 0; number.power++) number.digits /= 10;
  for (; number.power > 0 && number.digits <= UINT64_MAX / 10; number.power--) number.digits *= 10;
}

int scan_bool(ByteSpan text) {
  constexpr const char *WORDS[] = {"false", "False", "FALSE", "true", "True", "TRUE"};
  for (int i = 0; (text.size == 4 || text.size == 5) && i < 6; i++)
    if (strlen(WORDS[i]) == size_t(text.size) && !memcmp(text.data, WORDS[i], text.size)) return i / 3;
  return -1;
}

// Forms: `YYYY-MM-DD`, or with `T` or one space `HH:MM`, `HH:MM:SS` or `HH:MM:SS.f` with 1 to 9 digits of fraction, and then
// nothing, `Z` or `±HH:MM`. Years 0001 to 9999 of the Gregorian calendar. Leap seconds, 24:00, week dates and
// lower-case letters are not accepted: such values stay text.
Timestamp scan_timestamp(ByteSpan text) {
  const int64_t size = text.size;
  if (size < 10 || text[4] != '-' || text[7] != '-') return {};
  const int64_t year = two_digits(text, 0) * 100 + two_digits(text, 2);
  const int64_t month = two_digits(text, 5), day = two_digits(text, 8);
  if (year < 1 || year > 9999 || month < 1 || month > 12 || day < 1 || day > days_of_month(year, month)) return {};
  Timestamp time = {TextClass::SECONDS, false, days_since_1970(year, month, day) * 86'400, 0};
  if (size == 10) return time;
  if (size < 16 || (text[10] != 'T' && text[10] != ' ')) return {};
  const int64_t of_day = scan_clock(text, 11);
  if (of_day < 0) return {};
  time.seconds += of_day;
  int64_t at = 16;
  if (at < size && text[at] == ':') {
    if (size - at < 3 || two_digits(text, at + 1) > 59) return {};
    time.seconds += two_digits(text, at + 1);
    at += 3;
    if (at < size && text[at] == '.' && !scan_fraction(text, ++at, time)) return {};
  }
  if (at == size) return time;
  time.has_zone = true;
  if (size - at == 1 && text[at] == 'Z') return time;
  if (size - at != 6 || (text[at] != '+' && text[at] != '-')) return {};
  const int64_t offset = scan_clock(text, at + 1);
  if (offset < 0) return {};
  time.seconds += text[at] == '+' ? -offset : offset;
  return time;
}

NumberLoss decimal_loss(const Number &number) {
  // 6 digits always survive the way to float32 and back (FLT_DIG).
  if (number.digits < 1'000'000 && (number.digits == 0 || (number.power > -36 && number.power < 32))) return NumberLoss::NONE;
  const uint64_t too_many = 1'000'000'000;  // no float32 needs more than 9 digits (FLT_DECIMAL_DIG)
  const Rounded rounded = magnitude(number);
  if (!rounded.is_decided) return NumberLoss::INEXACT_DECIMAL;
  // Half a step above the largest float32: from here on a value rounds to inf.
  if (rounded.value >= 0x1.ffffffp127) return NumberLoss::BEYOND_FLOAT32;
  const double single = static_cast<float>(rounded.value);
  // A value that underflows float64 is lost, although float32 holds its 0 exactly.
  if (single == rounded.value) return rounded.value > 0.0 ? NumberLoss::NONE : NumberLoss::INEXACT_DECIMAL;
  uint64_t digits = number.digits;
  int64_t power = number.power;
  for (; digits % 10 == 0; power++) digits /= 10;
  if (number.is_cut || digits >= too_many) return NumberLoss::INEXACT_DECIMAL;
  double scaled = single;
  for (int64_t step; power < 0; power += step) scaled *= TENS[step = min(-power, EXACT_TENS)];
  for (int64_t step; power > 0; power -= step) scaled /= TENS[step = min(power, EXACT_TENS)];
  const double off = __builtin_fabs(scaled - static_cast<double>(digits));
  // A tie rounds to the even digit, as printing does.
  return off < 0.5 || (off == 0.5 && digits % 2 == 0) ? NumberLoss::NONE : NumberLoss::INEXACT_DECIMAL;
}

Class class_of(const Timestamp &time) {
  if (time.unit == 0) return {0, NumberLoss::NONE};
  const int64_t limit = 9'223'372'036;  // seconds: int64 nanoseconds reach less than a second further
  const bool fits_nanos = time.seconds >= -limit && time.seconds < limit;
  int64_t bits = time.unit | (time.has_zone ? TextClass::AWARE : TextClass::NAIVE);
  if (!fits_nanos) bits |= TextClass::BEYOND_NANOS;
  return {bits, NumberLoss::NONE};
}

Class classify(ByteSpan text) {
  if (text.size >= 10 && text[4] == '-')
    if (const Class time = class_of(scan_timestamp(text)); time.bits) return time;
  const Number number = scan_number(text);
  if (number.kind == NumberKind::NONE && scan_bool(text) >= 0) return {TextClass::BOOL, NumberLoss::NONE};
  return class_of(number);
}

}  // namespace rm
