// Arrays with their sizes: how Python passes them, and how the library hands them on.
#ifndef RECORDMILL_SPAN_H
#define RECORDMILL_SPAN_H

#include <stdint.h>

#define RM_INLINE inline __attribute__((always_inline))

namespace rm {

template <typename T>
struct Span {
  T *data = nullptr;
  int64_t size = 0;

  constexpr Span() = default;
  constexpr Span(T *data, int64_t size) : data(data), size(size) {}
  template <typename Mutable>
  constexpr Span(Span<Mutable> other) : data(other.data), size(other.size) {}  // to a Span<const T>

  RM_INLINE T &operator[](int64_t index) const { return data[index]; }
  explicit constexpr operator bool() const { return data != nullptr; }  // whether it was passed
  // Whether [start, start + length) lies within. Safe for any numbers.
  RM_INLINE bool holds(int64_t start, int64_t length = 1) const {
    return start >= 0 && length >= 0 && start <= size && length <= size - start;
  }
};

using ByteSpan = Span<const uint8_t>;

}  // namespace rm

#endif
