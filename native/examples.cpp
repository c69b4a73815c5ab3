// Columns to framed tf.train.Example records. The first pass computes all sizes, the second one writes the bytes, block by
// block and column by column. An entry of the map is
//
//   0A entry_length | 0A name_length name 12 | feature_length list_tag list_length | list
//
// The middle part, the key, is constant for a column. The complete head is constant if everything except the data is
// constant, or depends only on the size of the data. The steps of a SequenceExample are written as records with one entry
// without a name, and so without a head; its feature lists as entries with a value that is serialized already.
//
// Heads and keys are copied in chunks of 16 bytes, so up to 15 bytes after an entry may be overwritten. There are later
// entries of the same record, or its CRC and the next header, which take 16 bytes. All of them are written later.
#include "frames.h"
#include "wire.h"

namespace rm {
namespace {

constexpr int64_t CHUNK_BYTES = 16;
constexpr int64_t BLOCK_BYTES = 16 << 10, BLOCK_ROWS = 256;  // half of a first-level cache; the rest is for the input
constexpr int64_t INT_SIZES = 11;                            // heads of ONE_INT: a varint has 1 to 10 bytes
constexpr int64_t PARTS = 5;                                 // arrays of a column, see ExampleColumn

// A range of values or bytes. size < 0: it is not inside its array.
struct Range {
  int64_t start, size;
};

RM_INLINE Range range_between(IntSpan splits, int64_t index) {
  return {splits[index], splits[index + 1] - splits[index]};
}
RM_INLINE IntSpan integers(ByteSpan bytes) { return {reinterpret_cast<const int64_t *>(bytes.data), bytes.size / 8}; }

// Returns the size of a length-delimited field with a content of `size` bytes.
RM_INLINE int64_t field_bytes(int64_t size) { return 1 + varint_bytes(static_cast<uint64_t>(size)) + size; }

struct Column {
  EntryKind kind;
  int64_t length, head_bytes;
  ByteSpan valid, values, heads;
  IntSpan splits, value_splits;
  int64_t count;                      // of values; for CONSTANT_SIZE of bytes
  int64_t int_bytes[INT_SIZES] = {};  // size of an entry of ONE_INT, by the size of its varint

  Column(const ExampleColumn &column, const ByteSpan *parts)
      : kind(column.kind), length(column.length), head_bytes(column.head_bytes), valid(parts[0]), values(parts[2]),
        heads(parts[4]), splits(integers(parts[1])), value_splits(integers(parts[3])),
        count{is_text() ? value_splits.size - 1 : values.size / (kind == EntryKind::CONSTANT_SIZE ? 1 : kind == EntryKind::FLOATS ? 4 : 8)} {
    for (int64_t size = 1; kind == EntryKind::ONE_INT && size < INT_SIZES; size++) int_bytes[size] = entry_bytes(2 + size);
  }

  RM_INLINE bool has(int64_t row) const { return valid.size == 0 || valid[row] != 0; }
  RM_INLINE int64_t number(int64_t index) const { return load<int64_t>(values.data + 8 * index); }
  bool is_text() const { return kind == EntryKind::TEXTS || kind == EntryKind::MESSAGE; }
  // Returns the size of the value of an entry: a Feature with that list, or a message as it is.
  RM_INLINE int64_t value_bytes(int64_t list_bytes) const {
    return kind == EntryKind::MESSAGE ? list_bytes : field_bytes(list_bytes);
  }
  // Returns the size of an entry with its own tag and length.
  RM_INLINE int64_t entry_bytes(int64_t list_bytes) const {
    if (head_bytes == 0) return field_bytes(list_bytes);  // a step
    return field_bytes(head_bytes - 1 + field_bytes(value_bytes(list_bytes)));  // the key ends with the value's tag
  }
  // Returns the range of the values of a row.
  RM_INLINE Range values_of(int64_t row) const {
    if (splits.size == 0) return {row * length, length};
    const Range range = range_between(splits, row);
    return ByteSpan{nullptr, count}.holds(range.start, range.size) ? range : Range{0, -1};
  }
  // Returns the range of the bytes of a text.
  RM_INLINE Range text(int64_t index) const {
    const Range range = range_between(value_splits, index);
    return values.holds(range.start, range.size) ? range : Range{0, -1};
  }
  // Returns whether heads, and the values of rows without splits, are inside their arrays. Ranges that come from splits are
  // checked when they are used.
  bool fits(int64_t rows) const {
    if (kind < EntryKind::ONE_INT || kind > EntryKind::MESSAGE || head_bytes < 0 || head_bytes > heads.size) return false;
    const bool is_int = kind == EntryKind::ONE_INT;
    const int64_t head_count = is_int ? INT_SIZES : 1;
    const int64_t longest_head = is_int ? entry_bytes(INT_SIZES + 1) - (INT_SIZES - 1) : head_bytes;
    if (heads.size / head_count < (longest_head + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES) return false;
    if ((valid.size != 0 && valid.size != rows) || (is_text() && value_splits.size == 0)) return false;
    if (splits.size != 0) return splits.size == rows + 1 && kind != EntryKind::CONSTANT_SIZE && !is_int;
    if (length < 0 || ((is_int || kind == EntryKind::MESSAGE) && length != 1)) return false;
    return rows == 0 || length <= count / rows;
  }
};

// Returns the size of the packed numbers of a row, or of its texts with tags and lengths; -1 if a range is not inside its
// array.
template <EntryKind KIND>
RM_INLINE int64_t data_bytes(const Column &column, int64_t row) {
  const Range range = column.values_of(row);
  if (range.size < 0) return -1;
  if (KIND == EntryKind::FLOATS) return 4 * range.size;
  if (KIND == EntryKind::INTS) return varints_bytes(column.values.data + 8 * range.start, range.size);
  int64_t size = 0;
  for (int64_t i = 0; i < range.size; i++) {
    const Range text = column.text(range.start + i);
    if (text.size < 0) return -1;
    size += KIND == EntryKind::MESSAGE ? text.size : field_bytes(text.size);
  }
  return size;
}

// Returns the size of the list with data of that size. A list without numbers is empty: it has no packed field.
template <EntryKind KIND>
RM_INLINE int64_t list_bytes(int64_t data_bytes) {
  return (KIND != EntryKind::INTS && KIND != EntryKind::FLOATS) || data_bytes == 0 ? data_bytes : field_bytes(data_bytes);
}

// Adds the sizes of a column's entries in rows [begin, end) to `sizes`, and writes the sizes of its data to `list_sizes`.
// Returns whether all ranges are inside their arrays.
template <EntryKind KIND>
bool add_sizes(const Column &column, int64_t begin, int64_t end, int64_t *sizes, int64_t *list_sizes) {
  for (int64_t row = begin; row < end; row++) {
    if (!column.has(row)) continue;
    if (KIND == EntryKind::ONE_INT) {
      sizes[row] += column.int_bytes[varint_bytes(static_cast<uint64_t>(column.number(row)))];
    } else if (KIND == EntryKind::CONSTANT_SIZE) {
      sizes[row] += column.head_bytes + column.length;
    } else {
      const int64_t size = data_bytes<KIND>(column, row);
      if (size < 0) return false;
      list_sizes[row] = size;
      sizes[row] += column.entry_bytes(list_bytes<KIND>(size));
    }
  }
  return true;
}

// Writes the tag and the length of a field. Returns the position after them.
RM_INLINE uint8_t *put_length(uint8_t *to, uint8_t tag, int64_t size) {
  *to = tag;
  return put_varint(to + 1, static_cast<uint64_t>(size));
}

// Copies complete chunks: up to 15 bytes more than `size`.
RM_INLINE void copy_chunks(uint8_t *to, const uint8_t *from, int64_t size) {
  for (int64_t i = 0; i < size; i += CHUNK_BYTES) memcpy(to + i, from + i, CHUNK_BYTES);
}

// Writes an entry up to its list. Returns the position of the list, or NULL if the entry, and the 15 bytes after it that may
// be overwritten, do not fit.
RM_INLINE uint8_t *put_head(const Column &column, uint8_t *to, const uint8_t *end, uint8_t list_tag, int64_t list_bytes) {
  const bool is_step = column.head_bytes == 0;
  const int64_t value = column.value_bytes(list_bytes);
  const int64_t entry = is_step ? list_bytes : column.head_bytes - 1 + field_bytes(value);
  if (entry + 21 > end - to) return nullptr;
  if (!is_step) {
    to = put_length(to, FIELD_1, entry);
    copy_chunks(to, column.heads.data, column.head_bytes);
    to = put_varint(to + column.head_bytes, static_cast<uint64_t>(value));
  }
  return column.kind == EntryKind::MESSAGE ? to : put_length(to, list_tag, list_bytes);
}

// Writes a column's entries of rows [first, last). Returns whether they fit, and have the sizes that were computed.
//   list_sizes: as add_sizes has written them.
//   end: the end of the output.
//   positions [last - first]: where the next entry of each record goes; are moved on.
template <EntryKind KIND>
bool put_entries(const Column &column, int64_t first, int64_t last, const int64_t *list_sizes, const uint8_t *end,
                 uint8_t **positions) {
  constexpr uint8_t TAG = KIND == EntryKind::INTS ? INT64_TAG : KIND == EntryKind::FLOATS ? FLOAT_TAG : BYTES_TAG;
  const uint8_t *const values = column.values.data;
  const int64_t stride = column.heads.size / INT_SIZES;
  for (int64_t row = first; row < last; row++) {
    if (!column.has(row)) continue;
    uint8_t *to = positions[row - first];
    if (KIND == EntryKind::ONE_INT) {
      const uint64_t value = static_cast<uint64_t>(column.number(row));
      const int64_t size = varint_bytes(value), head = column.int_bytes[size] - size;
      if (head + size + CHUNK_BYTES > end - to) return false;
      copy_chunks(to, column.heads.data + size * stride, head);
      to = put_varint(to + head, value);
    } else if (KIND == EntryKind::CONSTANT_SIZE) {
      const int64_t head = column.head_bytes, size = column.length;
      if (size > end - to || head + size + CHUNK_BYTES > end - to) return false;
      copy_chunks(to, column.heads.data, head);
      if (size == 4) memcpy(to + head, values + 4 * row, 4);
      else copy_short(to + head, values + size * row, size);
      to += head + size;
    } else {
      const Range range = column.values_of(row);
      const int64_t size = list_sizes[row];
      if (range.size < 0 || size < 0 || size > end - to) return false;
      to = put_head(column, to, end, TAG, list_bytes<KIND>(size));
      if (to == nullptr) return false;
      if ((KIND == EntryKind::INTS || KIND == EntryKind::FLOATS) && size > 0) to = put_length(to, FIELD_1, size);
      const uint8_t *const start = to;
      if (KIND == EntryKind::FLOATS) {
        if (size != 4 * range.size) return false;
        copy_short(to, values + 4 * range.start, size);
        to += size;
      }
      if (KIND == EntryKind::INTS) {
        const uint8_t *const numbers = values + 8 * range.start;
        const int64_t room = end - to - CHUNK_BYTES;
        // The exact size is computed only if varints of 10 bytes would not fit.
        if (10 * range.size > room && varints_bytes(numbers, range.size) > room) return false;
        to = put_varints(to, numbers, range.size);
      }
      for (int64_t i = 0; (KIND == EntryKind::TEXTS || KIND == EntryKind::MESSAGE) && i < range.size; i++) {
        const Range text = column.text(range.start + i);
        if (text.size < 0 || text.size > end - to - CHUNK_BYTES) return false;
        if (KIND != EntryKind::MESSAGE) to = put_length(to, FIELD_1, text.size);
        copy_short(to, values + text.start, text.size);
        to += text.size;
      }
      if (to != start + size) return false;
    }
    positions[row - first] = to;
  }
  return true;
}

struct Columns {
  Span<const ExampleColumn> columns;
  Span<const ByteSpan> parts;

  RM_INLINE Column operator[](int64_t index) const { return Column(columns[index], parts.data + PARTS * index); }
  // Returns whether all arrays have the sizes that `rows` records need.
  bool fit(int64_t rows, int64_t list_sizes, int64_t starts, int64_t lengths) const {
    if (parts.size != PARTS * columns.size || list_sizes != columns.size * rows) return false;
    if (starts != rows || lengths != rows) return false;
    for (int64_t i = 0; i < columns.size; i++)
      if (!(*this)[i].fits(rows)) return false;
    return true;
  }
};

// By EntryKind.
constexpr decltype(&add_sizes<EntryKind::ONE_INT>) ADD_SIZES[] = {
    add_sizes<EntryKind::ONE_INT>, add_sizes<EntryKind::INTS>, add_sizes<EntryKind::CONSTANT_SIZE>,
    add_sizes<EntryKind::FLOATS>,  add_sizes<EntryKind::TEXTS>, add_sizes<EntryKind::MESSAGE>};
constexpr decltype(&put_entries<EntryKind::ONE_INT>) PUT_ENTRIES[] = {
    put_entries<EntryKind::ONE_INT>, put_entries<EntryKind::INTS>, put_entries<EntryKind::CONSTANT_SIZE>,
    put_entries<EntryKind::FLOATS>,  put_entries<EntryKind::TEXTS>, put_entries<EntryKind::MESSAGE>};

}  // namespace

int64_t rm_size_examples(Span<const ExampleColumn> columns, Span<const ByteSpan> parts, Span<int64_t> list_sizes,
                         Span<int64_t> entry_sizes, Span<int64_t> starts, Span<int64_t> lengths) {
  const Columns all{columns, parts};
  const int64_t rows = entry_sizes.size;
  if (!all.fit(rows, list_sizes.size, starts.size, lengths.size)) return BOUNDS;
  int64_t position = 0;
  for (int64_t begin = 0; begin < rows; begin += BLOCK_ROWS) {
    const int64_t end = min(begin + BLOCK_ROWS, rows);
    for (int64_t row = begin; row < end; row++) entry_sizes[row] = 0;
    for (int64_t i = 0; i < columns.size; i++) {
      const Column column = all[i];
      const auto add = ADD_SIZES[static_cast<int>(column.kind)];
      if (!add(column, begin, end, entry_sizes.data, list_sizes.data + i * rows)) return BOUNDS;
    }
    for (int64_t row = begin; row < end; row++) {
      starts[row] = position;
      lengths[row] = field_bytes(entry_sizes[row]);
      position += lengths[row] + FRAME_BYTES;
    }
  }
  return position;
}

int64_t rm_write_examples(Span<const ExampleColumn> columns, Span<const ByteSpan> parts, IntSpan list_sizes,
                          IntSpan entry_sizes, IntSpan starts, IntSpan lengths, Span<uint8_t> out,
                          Span<uint32_t> crcs) {
  const Columns all{columns, parts};
  const int64_t rows = entry_sizes.size;
  if (crcs.size != rows || !all.fit(rows, list_sizes.size, starts.size, lengths.size)) return BOUNDS;
  const ByteSpan payload_room{out.data, out.size - FRAME_BYTES - CHUNK_BYTES};
  uint8_t *positions[BLOCK_ROWS];
  for (int64_t begin = 0, end; begin < rows; begin = end) {
    // A block of records is written column by column, and must fit the first-level cache until its CRCs are computed.
    for (end = begin; end < rows && end - begin < BLOCK_ROWS; end++) {
      if (!payload_room.holds(starts[end], lengths[end])) return BOUNDS;
      if (end > begin && starts[end] + lengths[end] - starts[begin] > BLOCK_BYTES) break;
      positions[end - begin] = put_length(out.data + starts[end] + HEADER_BYTES, FIELD_1, entry_sizes[end]);
    }
    for (int64_t i = 0; i < columns.size; i++) {
      const Column column = all[i];
      const auto put = PUT_ENTRIES[static_cast<int>(column.kind)];
      if (!put(column, begin, end, list_sizes.data + i * rows, out.data + out.size, positions)) return BOUNDS;
    }
    for (int64_t row = begin; row < end; row++) {
      uint8_t *const frame = out.data + starts[row];
      if (positions[row - begin] != frame + HEADER_BYTES + lengths[row]) return BOUNDS;
      crcs[row] = put_frame(frame, lengths[row]);
    }
  }
  return rows;
}

}  // namespace rm
