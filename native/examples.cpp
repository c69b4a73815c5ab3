// Columns to framed tf.train.Example records: first the sizes, then the bytes, block by block and column by column. An
// entry of the map is `0A entry_length | 0A name_length name 12 | feature_length kind list_length | list`. The middle
// part is constant for a column: its key. Where all but the data is constant, or depends on the data's size alone, the
// whole head is. The steps of a SequenceExample are written as records whose one entry has no name, and so no head; its
// feature lists as entries whose value is a message that is there already. Heads and keys go in chunks, so up to 15
// bytes after an entry may be overwritten: there stand later entries of the same record, or the 16 bytes of its CRC and
// of the next header, all of which are written later.
#include "frames.h"
#include "wire.h"

namespace rm {
namespace {

constexpr int64_t CHUNK_BYTES = 16;
constexpr int64_t BLOCK_BYTES = 16 << 10, BLOCK_ROWS = 256;  // half of a first-level cache; the rest is for the input
constexpr int64_t INT_SIZES = 11;                            // a varint has 1 to 10 bytes
constexpr int64_t PARTS = 5;                                 // arrays of a column

// A run of values, or of bytes.
struct Run {
  int64_t start, size;
};

RM_INLINE Run run_of(IntSpan splits, int64_t index) { return {splits[index], splits[index + 1] - splits[index]}; }
RM_INLINE IntSpan integers(ByteSpan bytes) { return {reinterpret_cast<const int64_t *>(bytes.data), bytes.size / 8}; }

// The bytes of a list's one byte string, or of its packed numbers, with tag and length.
RM_INLINE int64_t field_bytes(int64_t size) { return 1 + varint_bytes(static_cast<uint64_t>(size)) + size; }

struct Column {
  int64_t way, length, head_bytes;
  ByteSpan valid, values, heads;
  IntSpan splits, value_splits;
  int64_t count;                     // of values; of CONSTANT_SIZE, of bytes
  int64_t int_bytes[INT_SIZES] = {};  // of an entry of ONE_INT, by the bytes of its varint

  Column(const ExampleColumn &about, const ByteSpan *parts)
      : way(about.way), length(about.length), head_bytes(about.head_bytes), valid(parts[0]), values(parts[2]),
        heads(parts[4]), splits(integers(parts[1])), value_splits(integers(parts[3])),
        count{is_text() ? value_splits.size - 1 : values.size / (way == CONSTANT_SIZE ? 1 : way == FLOATS ? 4 : 8)} {
    for (int64_t size = 1; way == ONE_INT && size < INT_SIZES; size++) int_bytes[size] = entry_bytes(2 + size);
  }

  RM_INLINE bool has(int64_t row) const { return valid.size == 0 || valid[row] != 0; }
  RM_INLINE int64_t number(int64_t index) const { return load<int64_t>(values.data + 8 * index); }
  bool is_text() const { return way == TEXTS || way == MESSAGE; }
  // The bytes of an entry's value: a Feature with that list, or a message as it is.
  RM_INLINE int64_t value_bytes(int64_t list_bytes) const {
    return way == MESSAGE ? list_bytes : field_bytes(list_bytes);
  }
  // The bytes of an entry, its own tag and length included.
  RM_INLINE int64_t entry_bytes(int64_t list_bytes) const {
    if (head_bytes == 0) return field_bytes(list_bytes);  // a step
    return field_bytes(head_bytes - 1 + field_bytes(value_bytes(list_bytes)));  // the key ends with the value's tag
  }
  // The values of a row; size < 0: they are not there.
  RM_INLINE Run values_of(int64_t row) const {
    if (splits.size == 0) return {row * length, length};
    const Run run = run_of(splits, row);
    return ByteSpan{nullptr, count}.holds(run.start, run.size) ? run : Run{0, -1};
  }
  RM_INLINE Run text(int64_t index) const {
    const Run run = run_of(value_splits, index);
    return values.holds(run.start, run.size) ? run : Run{0, -1};
  }
  // Whether all rows without splits, and what is read in chunks, lie within their arrays.
  bool fits(int64_t rows) const {
    const int64_t copies = way == ONE_INT ? INT_SIZES : 1;
    const int64_t most = way == ONE_INT ? entry_bytes(INT_SIZES + 1) - (INT_SIZES - 1) : head_bytes;
    if (way < ONE_INT || way > MESSAGE || head_bytes < 0 || head_bytes > heads.size) return false;
    if (heads.size / copies < (most + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES) return false;
    if ((valid.size != 0 && valid.size != rows) || (is_text() && value_splits.size == 0)) return false;
    if (splits.size != 0) return splits.size == rows + 1 && way != CONSTANT_SIZE && way != ONE_INT;
    if (length < 0 || ((way == ONE_INT || way == MESSAGE) && length != 1)) return false;
    return rows == 0 || length <= count / rows;
  }
};

// The bytes of a row's packed numbers, or of its texts with tags and lengths; -1: they are not there.
template <int WAY>
RM_INLINE int64_t data_bytes(const Column &column, int64_t row) {
  const Run run = column.values_of(row);
  if (run.size < 0) return -1;
  if (WAY == FLOATS) return 4 * run.size;
  if (WAY == INTS) return varints_bytes(column.values.data + 8 * run.start, run.size);
  int64_t size = 0;
  for (int64_t i = 0; i < run.size; i++) {
    const Run text = column.text(run.start + i);
    if (text.size < 0) return -1;
    size += WAY == MESSAGE ? text.size : field_bytes(text.size);
  }
  return size;
}

// The bytes of the list that holds them; one without numbers is empty.
template <int WAY>
RM_INLINE int64_t list_bytes(int64_t data_bytes) {
  return (WAY != INTS && WAY != FLOATS) || data_bytes == 0 ? data_bytes : field_bytes(data_bytes);
}

template <int WAY>
bool add_sizes(const Column &column, int64_t first, int64_t last, int64_t *sizes, int64_t *kept) {
  for (int64_t row = first; row < last; row++) {
    if (!column.has(row)) continue;
    if (WAY == ONE_INT) {
      sizes[row] += column.int_bytes[varint_bytes(static_cast<uint64_t>(column.number(row)))];
    } else if (WAY == CONSTANT_SIZE) {
      sizes[row] += column.head_bytes + column.length;
    } else {
      const int64_t size = data_bytes<WAY>(column, row);
      if (size < 0) return false;
      kept[row] = size;
      sizes[row] += column.entry_bytes(list_bytes<WAY>(size));
    }
  }
  return true;
}

// Writes the tag and the length of a field; gives the place after it.
RM_INLINE uint8_t *put_length(uint8_t *to, uint8_t tag, int64_t size) {
  *to = tag;
  return put_varint(to + 1, static_cast<uint64_t>(size));
}

// Writes whole chunks: up to 15 bytes more.
RM_INLINE void copy_chunks(uint8_t *to, const uint8_t *from, int64_t size) {
  for (int64_t i = 0; i < size; i += CHUNK_BYTES) memcpy(to + i, from + i, CHUNK_BYTES);
}

// Writes what stands in an entry before its list; gives the place after it, NULL where the entry does not fit. What is
// written more than the entry, 15 bytes at most, fits then as well.
RM_INLINE uint8_t *put_head(const Column &column, uint8_t *to, const uint8_t *end, uint8_t kind, int64_t list_bytes) {
  const bool is_step = column.head_bytes == 0;
  const int64_t value = column.value_bytes(list_bytes);
  const int64_t entry = is_step ? list_bytes : column.head_bytes - 1 + field_bytes(value);
  if (entry + 21 > end - to) return nullptr;
  if (!is_step) {
    to = put_length(to, FIELD_1, entry);
    copy_chunks(to, column.heads.data, column.head_bytes);
    to = put_varint(to + column.head_bytes, static_cast<uint64_t>(value));
  }
  return column.way == MESSAGE ? to : put_length(to, kind, list_bytes);
}

// Writes one column's entries of some records, each at its place, which moves on; `kept` as add_sizes wrote it.
template <int WAY>
bool put_entries(const Column &column, int64_t first, int64_t last, const int64_t *kept, const uint8_t *end,
                 uint8_t **places) {
  constexpr uint8_t KIND = WAY == INTS ? INT64_TAG : WAY == FLOATS ? FLOAT_TAG : BYTES_TAG;
  const uint8_t *const values = column.values.data;
  const int64_t stride = column.heads.size / INT_SIZES;
  for (int64_t row = first; row < last; row++) {
    if (!column.has(row)) continue;
    uint8_t *to = places[row - first];
    if (WAY == ONE_INT) {
      const uint64_t value = static_cast<uint64_t>(column.number(row));
      const int64_t size = varint_bytes(value), head = column.int_bytes[size] - size;
      if (head + size + CHUNK_BYTES > end - to) return false;
      copy_chunks(to, column.heads.data + size * stride, head);
      to = put_varint(to + head, value);
    } else if (WAY == CONSTANT_SIZE) {
      const int64_t head = column.head_bytes, size = column.length;
      if (size > end - to || head + size + CHUNK_BYTES > end - to) return false;
      copy_chunks(to, column.heads.data, head);
      if (size == 4) memcpy(to + head, values + 4 * row, 4);
      else copy_short(to + head, values + size * row, size);
      to += head + size;
    } else {
      const Run run = column.values_of(row);
      const int64_t size = kept[row];
      if (run.size < 0 || size < 0 || size > end - to) return false;
      to = put_head(column, to, end, KIND, list_bytes<WAY>(size));
      if (to == nullptr) return false;
      if ((WAY == INTS || WAY == FLOATS) && size > 0) to = put_length(to, FIELD_1, size);
      const uint8_t *const start = to;
      if (WAY == FLOATS) {
        if (size != 4 * run.size) return false;
        copy_short(to, values + 4 * run.start, size);
        to += size;
      }
      if (WAY == INTS) {
        const uint8_t *const numbers = values + 8 * run.start;
        const int64_t room = end - to - CHUNK_BYTES;
        if (10 * run.size > room && varints_bytes(numbers, run.size) > room) return false;
        to = put_varints(to, numbers, run.size);
      }
      for (int64_t i = 0; (WAY == TEXTS || WAY == MESSAGE) && i < run.size; i++) {
        const Run text = column.text(run.start + i);
        if (text.size < 0 || text.size > end - to - CHUNK_BYTES) return false;
        if (WAY != MESSAGE) to = put_length(to, FIELD_1, text.size);
        copy_short(to, values + text.start, text.size);
        to += text.size;
      }
      if (to != start + size) return false;
    }
    places[row - first] = to;
  }
  return true;
}

struct Columns {
  Span<const ExampleColumn> about;
  Span<const ByteSpan> parts;

  RM_INLINE Column operator[](int64_t index) const { return Column(about[index], parts.data + PARTS * index); }
  // Whether there are parts of each column, as long as the records are many, and the other arrays are.
  bool fit(int64_t rows, int64_t kept, int64_t starts, int64_t lengths) const {
    const int64_t columns = about.size;
    if (parts.size != PARTS * columns || kept != columns * rows || starts != rows || lengths != rows) return false;
    for (int64_t i = 0; i < columns; i++)
      if (!(*this)[i].fits(rows)) return false;
    return true;
  }
};

// By way.
constexpr decltype(&add_sizes<ONE_INT>) ADD_SIZES[] = {
    add_sizes<ONE_INT>, add_sizes<INTS>, add_sizes<CONSTANT_SIZE>,
    add_sizes<FLOATS>,  add_sizes<TEXTS>, add_sizes<MESSAGE>};
constexpr decltype(&put_entries<ONE_INT>) PUT_ENTRIES[] = {
    put_entries<ONE_INT>, put_entries<INTS>, put_entries<CONSTANT_SIZE>,
    put_entries<FLOATS>,  put_entries<TEXTS>, put_entries<MESSAGE>};

}  // namespace

int64_t rm_size_examples(Span<const ExampleColumn> columns, Span<const ByteSpan> parts, Span<int64_t> kept,
                         Span<int64_t> sizes, Span<int64_t> starts, Span<int64_t> lengths) {
  const Columns all{columns, parts};
  const int64_t rows = sizes.size;
  if (!all.fit(rows, kept.size, starts.size, lengths.size)) return BOUNDS;
  int64_t at = 0;
  for (int64_t first = 0; first < rows; first += BLOCK_ROWS) {
    const int64_t last = min(first + BLOCK_ROWS, rows);
    for (int64_t row = first; row < last; row++) sizes[row] = 0;
    for (int64_t i = 0; i < columns.size; i++) {
      const Column column = all[i];
      if (!ADD_SIZES[column.way](column, first, last, sizes.data, kept.data + i * rows)) return BOUNDS;
    }
    for (int64_t row = first; row < last; row++) {
      starts[row] = at;
      lengths[row] = field_bytes(sizes[row]);
      at += lengths[row] + FRAME_BYTES;
    }
  }
  return at;
}

int64_t rm_write_examples(Span<const ExampleColumn> columns, Span<const ByteSpan> parts, IntSpan kept, IntSpan sizes,
                          IntSpan starts, IntSpan lengths, Span<uint8_t> out, Span<uint32_t> crcs) {
  const Columns all{columns, parts};
  const int64_t rows = sizes.size;
  if (crcs.size != rows || !all.fit(rows, kept.size, starts.size, lengths.size)) return BOUNDS;
  uint8_t *places[BLOCK_ROWS];
  for (int64_t first = 0, last; first < rows; first = last) {
    for (last = first; last < rows && last - first < BLOCK_ROWS; last++) {
      if (!ByteSpan{out.data, out.size - FRAME_BYTES - CHUNK_BYTES}.holds(starts[last], lengths[last])) return BOUNDS;
      if (last > first && starts[last] + lengths[last] - starts[first] > BLOCK_BYTES) break;
      places[last - first] = put_length(out.data + starts[last] + HEADER_BYTES, FIELD_1, sizes[last]);
    }
    for (int64_t i = 0; i < columns.size; i++) {
      const Column column = all[i];
      const int64_t *const known = kept.data + i * rows;
      if (!PUT_ENTRIES[column.way](column, first, last, known, out.data + out.size, places)) return BOUNDS;
    }
    for (int64_t row = first; row < last; row++) {
      uint8_t *const frame = out.data + starts[row];
      if (places[row - first] != frame + HEADER_BYTES + lengths[row]) return BOUNDS;
      crcs[row] = put_frame(frame, lengths[row]);
    }
  }
  return rows;
}

}  // namespace rm
