// Batches of the reader: rows of lists padded or packed, and which of all records are read, as bits.
#include "common.h"

namespace rm {
namespace {

constexpr int64_t BLOCK_WORDS = 8;  // of a bitmap, with a count before them: 512 bits, one cache line

RM_INLINE int64_t count_bits(uint64_t word) { return __builtin_popcountll(word); }
RM_INLINE uint64_t bits_below(int64_t bit) { return (uint64_t{1} << bit) - 1; }

// Whether before has the bits before each block of words, and all of them.
bool fits(const Span<const uint64_t> &words, const Span<const int64_t> &before) {
  return words.size % BLOCK_WORDS == 0 && before.size == words.size / BLOCK_WORDS + 1;
}

// The last block before which there are at most that many bits.
int64_t find_block(const Span<const int64_t> &before, int64_t number) {
  int64_t low = 0, high = before.size - 1;
  while (low < high - 1) {
    const int64_t middle = (low + high) / 2;
    (before[middle] <= number ? low : high) = middle;
  }
  return low;
}

}  // namespace
}  // namespace rm

using namespace rm;

RM_EXPORT int64_t rm_count_bits(const uint64_t *words, int64_t words_size, int64_t *before, int64_t before_size) {
  if (!fits({words, words_size}, {before, before_size})) return RM_BOUNDS;
  int64_t count = before[0] = 0;
  for (int64_t word = 0; word < words_size; word++) {
    count += count_bits(words[word]);
    before[word / BLOCK_WORDS + 1] = count;
  }
  return count;
}

RM_EXPORT int64_t rm_set_bits(const int64_t *numbers, int64_t numbers_size, uint64_t *words, int64_t words_size) {
  for (int64_t i = 0; i < numbers_size; i++) {
    if (numbers[i] < 0 || numbers[i] / 64 >= words_size) return RM_BOUNDS;
    words[numbers[i] / 64] |= uint64_t{1} << (numbers[i] & 63);
  }
  return 0;
}

RM_EXPORT int64_t rm_rank_bits(const int64_t *numbers, int64_t numbers_size, const uint64_t *words, int64_t words_size,
                               const int64_t *before, int64_t before_size, int64_t *out, int64_t out_size) {
  if (!fits({words, words_size}, {before, before_size}) || out_size != numbers_size) return RM_BOUNDS;
  for (int64_t i = 0; i < numbers_size; i++) {
    if (numbers[i] < 0 || numbers[i] > 64 * words_size) return RM_BOUNDS;
    const int64_t at = numbers[i] / 64, block = at / BLOCK_WORDS, bit = numbers[i] & 63;
    int64_t count = before[block];
    for (int64_t word = block * BLOCK_WORDS; word < at; word++) count += count_bits(words[word]);
    out[i] = bit ? count + count_bits(words[at] & bits_below(bit)) : count;
  }
  return 0;
}

RM_EXPORT int64_t rm_select_bits(const int64_t *numbers, int64_t numbers_size, const uint64_t *words,
                                 int64_t words_size, const int64_t *before, int64_t before_size, int64_t *out,
                                 int64_t out_size) {
  const Span<const int64_t> counts{before, before_size};
  if (!fits({words, words_size}, counts) || out_size != numbers_size) return RM_BOUNDS;
  for (int64_t i = 0; i < numbers_size; i++) {
    if (numbers[i] < 0 || numbers[i] >= before[before_size - 1]) return RM_BOUNDS;
    const int64_t block = find_block(counts, numbers[i]);
    int64_t word = block * BLOCK_WORDS, left = numbers[i] - before[block];
    for (int64_t ones; word < words_size && (ones = count_bits(words[word])) <= left; word++) left -= ones;
    if (word == words_size || left < 0) return RM_BOUNDS;
    uint64_t bits = words[word];
    for (; left > 0; left--) bits &= bits - 1;
    out[i] = word * 64 + first_bit(bits);
  }
  return 0;
}

RM_EXPORT int64_t rm_pad_rows(const rm_bytes *values, int64_t values_size, const int64_t *splits, int64_t splits_size,
                              const int64_t *edges, int64_t edges_size, const int64_t *lengths, int64_t lengths_size,
                              int64_t item_bytes, uint8_t *out, int64_t out_size) {
  if (values_size != 1 || edges_size != lengths_size + 1 || item_bytes < 1) return RM_BOUNDS;
  const int64_t items = values->size / item_bytes;
  int64_t at = 0;
  for (int64_t step = 0; step < lengths_size; step++) {
    const int64_t length = lengths[step];
    if (edges[step] < 0 || edges[step + 1] >= splits_size || length < 0) return RM_BOUNDS;
    for (int64_t row = edges[step]; row < edges[step + 1]; row++) {
      const int64_t size = splits[row + 1] - splits[row];
      if (!Span<const uint8_t>{values->data, items}.holds(splits[row], size)) return RM_BOUNDS;
      if (length > (out_size - at) / item_bytes) return RM_BOUNDS;
      copy_short(out + at, values->data + splits[row] * item_bytes, min(size, length) * item_bytes);
      at += length * item_bytes;
    }
  }
  return at;
}

RM_EXPORT int64_t rm_pack_rows(const int64_t *lengths, int64_t lengths_size, const int64_t *limits,
                               int64_t limits_size, int64_t *left, int64_t left_size, int64_t *places,
                               int64_t places_size, int64_t *ends, int64_t ends_size) {
  const int64_t records = places_size, features = limits_size;
  if (features < 1 || left_size < features || left_size % features || ends_size != records) return RM_BOUNDS;
  if (lengths_size % features || lengths_size / features != records) return RM_BOUNDS;
  const int64_t rows = left_size / features;
  const auto empty_rows = [&] {
    for (int64_t i = 0; i < left_size; i++) left[i] = limits[i % features];
  };
  const auto has_room = [&](int64_t row, int64_t record) {
    bool fits = true;
    for (int64_t i = 0; i < features; i++) fits &= left[row * features + i] >= lengths[i * records + record];
    return fits;
  };
  int64_t steps = 0;
  empty_rows();
  for (int64_t record = 0; record < records; record++) {
    int64_t row = 0;
    while (row < rows && !has_room(row, record)) row++;
    if (row == rows) {
      ends[steps++] = record;
      empty_rows();
      row = 0;
      if (!has_room(row, record)) return RM_BOUNDS;
    }
    for (int64_t i = 0; i < features; i++) left[row * features + i] -= lengths[i * records + record];
    places[record] = steps * rows + row;
  }
  return steps;
}

RM_EXPORT int64_t rm_number_items(const int64_t *splits, int64_t splits_size, const int64_t *bins, int64_t bins_size,
                                  int64_t length, int32_t *numbers, int64_t numbers_size, int32_t *positions,
                                  int64_t positions_size) {
  if (bins_size < 1 || length < 0 || numbers_size != (bins_size - 1) * length || positions_size != numbers_size)
    return RM_BOUNDS;
  for (int64_t row = 0; row < bins_size - 1; row++) {
    if (bins[row] < 0 || bins[row + 1] >= splits_size) return RM_BOUNDS;
    int64_t at = row * length;
    for (int64_t record = bins[row]; record < bins[row + 1]; record++) {
      const int64_t size = splits[record + 1] - splits[record];
      if (size > (row + 1) * length - at) return RM_BOUNDS;
      for (int64_t item = 0; item < size; item++, at++) {
        numbers[at] = static_cast<int32_t>(record - bins[row] + 1);
        positions[at] = static_cast<int32_t>(item);
      }
    }
  }
  return 0;
}
