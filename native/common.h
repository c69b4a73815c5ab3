// Shared by all files of the library: spans, unaligned loads and stores, bit counts, mixing of hashes.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif
#include <stdint.h>
#include <string.h>

#define RM_INLINE inline __attribute__((always_inline))
#define RM_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define RM_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

// Checks an invariant of the library itself. Only builds for the sanitizers, which define RM_DEBUG, do this. Arguments of
// callers are checked by every entry function, in all builds.
#if defined(RM_DEBUG)
#define RM_ASSERT(condition) ((condition) ? void() : __builtin_trap())
#else
#define RM_ASSERT(condition) void()
#endif

namespace rm {

// An array with its size, as Python passes it.
template <typename T>
struct Span {
  T *data = nullptr;
  int64_t size = 0;

  constexpr Span() = default;
  constexpr Span(T *data, int64_t size) : data(data), size(size) {}
  template <typename Mutable>
  constexpr Span(Span<Mutable> other) : data(other.data), size(other.size) {}  // Span<T> to Span<const T>

  RM_INLINE T &operator[](int64_t index) const {
    RM_ASSERT(index >= 0 && index < size);
    return data[index];
  }
  RM_INLINE T *end() const { return data + size; }
  explicit constexpr operator bool() const { return data != nullptr; }  // whether it was passed
  // Returns whether [start, start + length) is inside the array. No argument overflows.
  RM_INLINE bool holds(int64_t start, int64_t length = 1) const {
    return start >= 0 && length >= 0 && start <= size && length <= size - start;
  }
};

using ByteSpan = Span<const uint8_t>;
using IntSpan = Span<const int64_t>;

// Reads a little-endian number at any address.
template <typename T>
RM_INLINE T load(const uint8_t *at) {
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}

// Writes a little-endian number at any address.
template <typename T>
RM_INLINE void store(uint8_t *at, T value) {
  memcpy(at, &value, sizeof value);
}

// Copies exactly `size` bytes. Up to 256 bytes are copied inline, which saves the call of memcpy: whole words from the
// front, and one more word that ends with the last byte and overlaps the others.
RM_INLINE void copy_short(uint8_t *target, const uint8_t *source, int64_t size) {
  if (size > 256) {
    memcpy(target, source, static_cast<size_t>(size));
  } else if (size >= 16) {
    for (int64_t done = 0; done + 16 < size; done += 16) memcpy(target + done, source + done, 16);
    memcpy(target + size - 16, source + size - 16, 16);
  } else if (size >= 8) {
    memcpy(target, source, 8);
    memcpy(target + size - 8, source + size - 8, 8);
  } else if (size >= 4) {
    memcpy(target, source, 4);
    memcpy(target + size - 4, source + size - 4, 4);
  } else {
    for (int64_t i = 0; i < size; i++) target[i] = source[i];
  }
}

// Returns the index of the lowest set bit; 64 for 0.
RM_INLINE int first_bit(uint64_t mask) { return mask ? __builtin_ctzll(mask) : 64; }
// Returns the number of clear bits above the highest set one; 64 for 0.
RM_INLINE int leading_zeros(uint64_t mask) { return mask ? __builtin_clzll(mask) : 64; }

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;  // 2^64 / the golden ratio, odd

// The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014). It is a
// bijection. half_mixed leaves out its last step. Use it if a stronger mix follows anyway.
RM_INLINE uint64_t half_mixed(uint64_t word) {
  word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
  return word ^ word >> 27;
}
RM_INLINE uint64_t mixed(uint64_t word) {
  word = half_mixed(word) * 0x94D049BB133111EBu;
  return word ^ word >> 31;
}

template <typename T>
RM_INLINE T min(T a, T b) { return b < a ? b : a; }
template <typename T>
RM_INLINE T max(T a, T b) { return a < b ? b : a; }

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "TFRecord and Arrow data are little-endian, and are read without swapping bytes");

}  // namespace rm
