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

int64_t rm_count_bits(Span<const uint64_t> words, Span<int64_t> before) {
  if (!fits(words, before)) return BOUNDS;
  int64_t count = before[0] = 0;
  for (int64_t word = 0; word < words.size; word++) {
    count += count_bits(words[word]);
    before[word / BLOCK_WORDS + 1] = count;
  }
  return count;
}

int64_t rm_set_bits(Span<const int64_t> numbers, Span<uint64_t> words) {
  for (int64_t i = 0; i < numbers.size; i++) {
    if (numbers[i] < 0 || numbers[i] / 64 >= words.size) return BOUNDS;
    words[numbers[i] / 64] |= uint64_t{1} << (numbers[i] & 63);
  }
  return 0;
}

int64_t rm_rank_bits(Span<const int64_t> numbers, Span<const uint64_t> words, Span<const int64_t> before,
                     Span<int64_t> out) {
  if (!fits(words, before) || out.size != numbers.size) return BOUNDS;
  for (int64_t i = 0; i < numbers.size; i++) {
    if (numbers[i] < 0 || numbers[i] > 64 * words.size) return BOUNDS;
    const int64_t at = numbers[i] / 64, block = at / BLOCK_WORDS, bit = numbers[i] & 63;
    int64_t count = before[block];
    for (int64_t word = block * BLOCK_WORDS; word < at; word++) count += count_bits(words[word]);
    out[i] = bit ? count + count_bits(words[at] & bits_below(bit)) : count;
  }
  return 0;
}

int64_t rm_select_bits(Span<const int64_t> numbers, Span<const uint64_t> words, Span<const int64_t> before,
                       Span<int64_t> out) {
  if (!fits(words, before) || out.size != numbers.size) return BOUNDS;
  for (int64_t i = 0; i < numbers.size; i++) {
    if (numbers[i] < 0 || numbers[i] >= before[before.size - 1]) return BOUNDS;
    const int64_t block = find_block(before, numbers[i]);
    int64_t word = block * BLOCK_WORDS, left = numbers[i] - before[block];
    for (int64_t ones; word < words.size && (ones = count_bits(words[word])) <= left; word++) left -= ones;
    if (word == words.size || left < 0) return BOUNDS;
    uint64_t bits = words[word];
    for (; left > 0; left--) bits &= bits - 1;
    out[i] = word * 64 + first_bit(bits);
  }
  return 0;
}

int64_t rm_pad_rows(Span<const ByteSpan> values, Span<const int64_t> splits, Span<const int64_t> edges,
                    Span<const int64_t> lengths, int64_t item_bytes, Span<uint8_t> out) {
  if (values.size != 1 || edges.size != lengths.size + 1 || item_bytes < 1) return BOUNDS;
  const int64_t items = values[0].size / item_bytes;
  int64_t at = 0;
  for (int64_t step = 0; step < lengths.size; step++) {
    const int64_t length = lengths[step];
    if (edges[step] < 0 || edges[step + 1] >= splits.size || length < 0) return BOUNDS;
    for (int64_t row = edges[step]; row < edges[step + 1]; row++) {
      const int64_t size = splits[row + 1] - splits[row];
      if (!ByteSpan(nullptr, items).holds(splits[row], size)) return BOUNDS;
      if (length > (out.size - at) / item_bytes) return BOUNDS;
      copy_short(out.data + at, values[0].data + splits[row] * item_bytes, min(size, length) * item_bytes);
      at += length * item_bytes;
    }
  }
  return at;
}

int64_t rm_pack_rows(Span<const int64_t> lengths, Span<const int64_t> limits, Span<int64_t> left, Span<int64_t> places,
                     Span<int64_t> ends) {
  const int64_t records = places.size, features = limits.size;
  if (features < 1 || left.size < features || left.size % features || ends.size != records) return BOUNDS;
  if (lengths.size % features || lengths.size / features != records) return BOUNDS;
  const int64_t rows = left.size / features;
  const auto empty_rows = [&] {
    for (int64_t i = 0; i < left.size; i++) left[i] = limits[i % features];
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
      if (!has_room(row, record)) return BOUNDS;
    }
    for (int64_t i = 0; i < features; i++) left[row * features + i] -= lengths[i * records + record];
    places[record] = steps * rows + row;
  }
  return steps;
}

int64_t rm_number_items(Span<const int64_t> splits, Span<const int64_t> bins, int64_t length, Span<int32_t> numbers,
                        Span<int32_t> positions) {
  if (bins.size < 1 || length < 0 || numbers.size != (bins.size - 1) * length || positions.size != numbers.size)
    return BOUNDS;
  for (int64_t row = 0; row < bins.size - 1; row++) {
    if (bins[row] < 0 || bins[row + 1] >= splits.size) return BOUNDS;
    int64_t at = row * length;
    for (int64_t record = bins[row]; record < bins[row + 1]; record++) {
      const int64_t size = splits[record + 1] - splits[record];
      if (size > (row + 1) * length - at) return BOUNDS;
      for (int64_t item = 0; item < size; item++, at++) {
        numbers[at] = static_cast<int32_t>(record - bins[row] + 1);
        positions[at] = static_cast<int32_t>(item);
      }
    }
  }
  return 0;
}

}  // namespace rm
