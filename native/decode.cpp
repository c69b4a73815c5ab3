// Serialized Examples to columns. The first pass goes record by record: it reads single numbers, and finds where the values of
// all other features are. The second pass goes column by column, from these lists to values.
#include "feature_parser.h"

namespace rm {
namespace {

// Returns the number of varints that end in [begin, end): one at each byte without the continuation bit.
RM_INLINE int64_t count_varints(const uint8_t *begin, const uint8_t *end, const uint8_t *limit) {
  int64_t count = 0;
  const uint8_t *next = begin;
  for (; next < end && limit - next >= BLOCK; next += BLOCK) {
    const uint64_t stops = ~high_mask(next);
    count += __builtin_popcountll(end - next >= BLOCK ? stops : stops << (BLOCK - (end - next)));
  }
  for (; next < end; next++) count += *next < 0x80;
  return count;
}

// Reads `count` varints that fit words. Up to VARINT_ROOM more values are written, which have no meaning.
//   stops: bit i is set if a varint ends at begin[i].
// The start of each varint comes from the mask, so none waits for the length of the one before it. A second loop, which
// compilers vectorise, removes the continuation bits.
template <typename Word>
RM_INLINE void read_block(const uint8_t *begin, uint64_t stops, int64_t *to, int64_t count) {
  Word words[BLOCK + VARINT_ROOM];
  int64_t next = 0;
  for (int64_t i = 0; i < count; i += VARINT_ROOM) {
    for (int64_t k = i; k < i + VARINT_ROOM; k++, stops &= stops - 1) {
      words[k] = load<Word>(begin + next);
      next = first_bit(stops) + 1;
    }
  }
  for (int64_t i = 0; i < count; i += VARINT_ROOM)
    for (int64_t k = i; k < i + VARINT_ROOM; k++) to[k] = static_cast<int64_t>(first_varint(words[k]));
}

// Reads the `count` varints of [begin, end). Returns the number read before one that is too long.
RM_INLINE int64_t read_varints(const uint8_t *begin, const uint8_t *end, const uint8_t *limit, int64_t *to,
                               int64_t count) {
  constexpr int64_t LONG_RUN = 16;  // after a varint of more than eight bytes, more of them are likely
  for (int64_t i = 0; i < count;) {
    const uint64_t bits = limit - begin >= 2 * BLOCK ? high_mask(begin) : ~uint64_t{0};
    // Bit i is set if each of the 2, 4 or 8 bytes from i on has its continuation bit.
    const uint64_t pairs = bits & bits >> 1, fours = pairs & pairs >> 2, eights = fours & fours >> 4;
    if (eights != 0) {  // or near the end of readable memory, where all bits are set above
      for (const int64_t stop = min(i + LONG_RUN, count); i < stop; i++) {
        const Varint varint = read_varint(begin, end, limit);
        if (varint.after == nullptr) return i;
        to[i] = static_cast<int64_t>(varint.value);
        begin = varint.after;
      }
      continue;
    }
    const int64_t complete = min<int64_t>(__builtin_popcountll(~bits), count - i);
    if (fours != 0) read_block<uint64_t>(begin, ~bits, to + i, complete);
    else if (bits != 0) read_block<uint32_t>(begin, ~bits, to + i, complete);
    else
      for (int64_t k = 0; k < complete; k++) to[i + k] = begin[k];
    i += complete;
    begin += BLOCK - leading_zeros(~bits);  // after the last varint that ends in the block
  }
  return count;
}

// The cells of the caller, with the operations of the first pass.
struct Cells : RecordCells {
  explicit Cells(const RecordCells &cells) : RecordCells(cells) {}

  int64_t rows() const { return status.size; }
  int64_t bitmap_bytes() const { return (rows() + 7) / 8; }
  bool fit() const {
    if (valid.size != columns.size * bitmap_bytes() || starts.size != sizes.size || culprits.size != rows()) return false;
    for (int64_t i = 0; i < columns.size; i++) {
      const CellMode mode = columns[i].mode;
      if (mode < CellMode::ONE_INT64 || mode > CellMode::STEPS) return false;
      const int64_t size = mode == CellMode::ONE_INT64   ? ints.size
                           : mode == CellMode::ONE_FLOAT ? floats.size
                                                         : starts.size;
      if (!Span<int64_t>{nullptr, size}.holds(columns[i].first, rows())) return false;
    }
    return true;
  }
  RM_INLINE uint8_t &bitmap_byte(int64_t column, int64_t row) const {
    return valid[column * bitmap_bytes() + (row >> 3)];
  }
  // Makes a cell null.
  void clear(int64_t column_index, int64_t row) const {
    CellColumn &column = columns[column_index];
    const int64_t cell = column.first + row;
    column.null_count++;
    bitmap_byte(column_index, row) &= static_cast<uint8_t>(~(1 << (row & 7)));
    if (column.mode == CellMode::ONE_INT64) ints[cell] = 0;
    else if (column.mode == CellMode::ONE_FLOAT) floats[cell] = 0;
    else starts[cell] = sizes[cell] = 0;
  }
  // Undoes the changes for a row that could not be read, because another decoder may read it.
  void restore(int64_t row) const {
    for (int64_t i = 0; i < columns.size; i++) {
      bitmap_byte(i, row) |= static_cast<uint8_t>(1 << (row & 7));
      if (columns[i].last_row == row) columns[i].last_row = -1;
    }
  }
};

// Reads one record into its cells.
struct RecordReader {
  const Cells &cells;
  Names &names;
  ByteSpan data;
  int64_t row, map_count;
  OtherFeatures others;
  int64_t columns_read = 0;
  int64_t culprit = -1;  // the column that caused the status, or -1

  RM_INLINE RecordStatus put_span(int64_t cell, ByteRange values) const {
    if (!values.is_valid()) return RecordStatus::UNUSUAL;
    cells.starts[cell] = values.begin - data.data;
    cells.sizes[cell] = values.size();
    return RecordStatus::GOOD;
  }

  // Reads a Feature or FeatureList that is not empty.
  RM_INLINE RecordStatus read_cell(const CellColumn &column, ByteRange value) const {
    static constexpr uint8_t TAGS[] = {INT64_TAG, FLOAT_TAG, BYTES_TAG, INT64_TAG, FLOAT_TAG, BYTES_TAG};
    const int64_t cell = column.first + row;
    if (column.mode == CellMode::STEPS) return put_span(cell, are_plain_steps(value, false) ? value : NO_RANGE);
    const uint8_t tag = *value.begin;
    const ByteRange list = read_content(value.begin + 1, value.end);
    if (list.end != value.end) return RecordStatus::UNUSUAL;
    if (tag != TAGS[static_cast<int>(column.mode)]) return RecordStatus::WRONG_KIND;
    if (column.mode == CellMode::ONE_INT64) {
      const ByteRange packed = plain_values(list, INT64_TAG);
      if (!packed.is_valid()) return RecordStatus::UNUSUAL;
      const Varint number = read_varint(packed.begin, packed.end, data.end());
      cells.ints[cell] = static_cast<int64_t>(number.value);
      return number.after == packed.end ? RecordStatus::GOOD : RecordStatus::WRONG_COUNT;
    }
    if (column.mode == CellMode::ONE_FLOAT) {
      constexpr uint16_t HEAD = FIELD_1 | 4 << 8;  // a packed field of four bytes, in one comparison
      if ((list.size() != 6 || load<uint16_t>(list.begin) != HEAD) && plain_values(list, FLOAT_TAG).size() != 4)
        return RecordStatus::WRONG_COUNT;
      cells.floats[cell] = load<uint32_t>(list.end - 4);
      return RecordStatus::GOOD;
    }
    if (column.mode == CellMode::ONE_BYTES) {
      if (list.size() == 0) return RecordStatus::WRONG_COUNT;
      const ByteRange text = next_field(list.begin, list.end, FIELD_1);
      if (text.is_valid() && text.end != list.end) return RecordStatus::WRONG_COUNT;
      return put_span(cell, text);
    }
    return put_span(cell, plain_values(list, tag));
  }

  // Reads the value of a column.
  RM_INLINE RecordStatus read_column(int64_t column_index, ByteRange value) {
    CellColumn &column = cells.columns[column_index];
    if (column.last_row == row) return RecordStatus::UNUSUAL;  // a repeated key: protobuf takes its last value
    column.last_row = row;
    columns_read++;
    if (value.size() > 0 || column.mode == CellMode::STEPS) return read_cell(column, value);
    cells.clear(column_index, row);
    return column.is_required ? RecordStatus::MISSING_VALUE : RecordStatus::GOOD;
  }

  // Reads the entries of a map. part: 1 or 2, see each_map.
  RecordStatus read_map(ByteRange map, int64_t part) {
    const auto is_name = [](ByteRange) { return true; };
    return each_entry(map, part, names, data.end(), is_name, [&](int64_t slot, ByteRange value) {
      if (slot > 0 && slot <= cells.columns.size) {  // the first slots are those of the columns
        const RecordStatus status = read_column(slot - 1, value);
        if (RM_UNLIKELY(status != RecordStatus::GOOD)) culprit = slot - 1;
        return status;
      }
      if (others == OtherFeatures::REFUSE) return RecordStatus::UNUSUAL;
      if (others != OtherFeatures::CHECK) return RecordStatus::GOOD;
      const bool is_plain = (part == 1 ? is_plain_feature : are_plain_steps)(value, true);
      return is_plain ? RecordStatus::GOOD : RecordStatus::UNUSUAL;
    });
  }

  // Makes the cells of absent columns null.
  RecordStatus clear_absent() {
    for (int64_t i = 0; i < cells.columns.size; i++) {
      if (cells.columns[i].last_row == row) continue;
      cells.clear(i, row);
      if (cells.columns[i].is_required && culprit < 0) culprit = i;
    }
    return culprit < 0 ? RecordStatus::GOOD : RecordStatus::MISSING_VALUE;
  }

  RecordStatus read_message(ByteRange message) {
    const RecordStatus status =
        each_map(message, map_count, [&](auto part, auto map) { return read_map(map, part); });
    return status == RecordStatus::GOOD && columns_read < cells.columns.size ? clear_absent() : status;
  }
};

// Calls visit(row, bytes) for each list of a column, until a call returns false. Returns whether all lists were visited.
template <typename Visit>
RM_INLINE bool each_list(ByteSpan data, IntSpan starts, IntSpan sizes, Visit visit) {
  constexpr int64_t AHEAD = 32;  // rows. Records are long, so the next lists are not in the cache yet
  if (sizes.size != starts.size) return false;
  for (int64_t row = 0; row < starts.size; row++) {
    if (row + AHEAD < starts.size)
      __builtin_prefetch(data.data + min(max<int64_t>(starts[row + AHEAD], 0), data.size));
    const ByteRange list = range_of(data, starts[row], sizes[row]);
    if (!list.is_valid() || !visit(row, list)) return false;
  }
  return true;
}

}  // namespace

int64_t rm_make_names(Span<int64_t> table, int64_t max_names, int64_t text_bytes, Span<const ByteSpan> names,
                      IntSpan parts) {
  constexpr int64_t LIMIT = int64_t{1} << 30;
  if (max_names < 0 || max_names > LIMIT || text_bytes < 0 || text_bytes > LIMIT) return BOUNDS;
  const int64_t room = Names::room(max_names, text_bytes);
  if (!table) return room;
  if (table.size < room || parts.size != names.size) return BOUNDS;
  Names made(table);
  made.begin(max_names, text_bytes);
  for (int64_t i = 0; i < names.size; i++)
    if (made.add(Key({names[i].data, names[i].end()}, parts[i], names[i].end())) < 0) return BOUNDS;
  return room;
}

int64_t rm_locate_features(ByteSpan data, IntSpan starts, IntSpan lengths, int64_t map_count, OtherFeatures others,
                           Span<int64_t> table, const RecordCells &record_cells) {
  constexpr int64_t AHEAD = 4;  // records to prefetch
  const Cells cells(record_cells);
  Names names(table);
  if (starts.size != cells.rows() || lengths.size != cells.rows() || !cells.fit()) return BOUNDS;
  if (map_count == 0 ? cells.columns.size != 1 : !names.fits()) return BOUNDS;
  int64_t bad = 0;
  for (int64_t row = 0; row < cells.rows(); row++) {
    if (cells.status[row] == static_cast<uint8_t>(RecordStatus::UNREAD)) {
      const ByteRange record = range_of(data, starts[row], lengths[row]);
      if (!record.is_valid()) return BOUNDS;
      if (row + AHEAD < cells.rows()) __builtin_prefetch(range_of(data, starts[row + AHEAD], 0).begin);
      RecordReader reader{cells, names, data, row, map_count, others};
      const RecordStatus status = map_count == 0 ? reader.read_column(0, record) : reader.read_message(record);
      if (status != RecordStatus::GOOD && map_count == 0) cells.clear(0, row);
      if (status != RecordStatus::GOOD && map_count != 0) cells.restore(row);
      cells.status[row] = static_cast<uint8_t>(status);
      cells.culprits[row] = reader.culprit;
    }
    bad += cells.status[row] != 0;
  }
  return bad;
}

int64_t rm_read_varints(ByteSpan data, IntSpan starts, IntSpan sizes, Span<int64_t> offsets, Span<int64_t> values,
                        Span<uint8_t> statuses) {
  if (offsets.size != starts.size + 1 || statuses.size != starts.size) return BOUNDS;
  if (!values) offsets[0] = 0;
  const bool is_complete = each_list(data, starts, sizes, [&](int64_t row, ByteRange list) {
    const auto [begin, end] = list;
    if (!values) {
      const bool is_cut_off = begin < end && end[-1] >= 0x80;
      if (is_cut_off) statuses[row] = static_cast<uint8_t>(RecordStatus::PAST_END);
      offsets[row + 1] = offsets[row] + (is_cut_off ? 0 : count_varints(begin, end, data.end()));
      return true;
    }
    const int64_t first = offsets[row], count = offsets[row + 1] - first;
    if (count < 0 || !values.holds(first, count + VARINT_ROOM)) return false;
    const int64_t done = read_varints(begin, end, data.end(), values.data + first, count);
    if (done == count) return true;
    statuses[row] = static_cast<uint8_t>(RecordStatus::LONG_VARINT);
    memset(values.data + first + done, 0, static_cast<size_t>(8 * (count - done)));
    return true;
  });
  return is_complete ? offsets[starts.size] : BOUNDS;
}

int64_t rm_find_fields(ByteSpan data, IntSpan starts, IntSpan sizes, Span<int64_t> offsets, Span<int64_t> field_starts,
                       Span<int64_t> field_sizes) {
  if (offsets.size != starts.size + 1 || field_starts.size != field_sizes.size) return BOUNDS;
  int64_t count = offsets[0] = 0;
  const bool is_complete = each_list(data, starts, sizes, [&](int64_t row, ByteRange list) {
    const bool is_plain = each_field(list, [&](ByteRange field) {
      if (field_starts && count >= field_starts.size) return false;
      if (field_starts) field_starts[count] = field.begin - data.data, field_sizes[count] = field.size();
      count++;
      return true;
    });
    offsets[row + 1] = count;
    return is_plain;
  });
  return is_complete ? count : BOUNDS;
}

int64_t rm_copy_values(ByteSpan data, IntSpan starts, IntSpan sizes, int64_t are_lists, Span<int64_t> ends,
                       Span<uint8_t> values) {
  if (ends.size < 1) return BOUNDS;
  int64_t count = 0, position = ends[0] = 0;
  const bool is_complete = each_list(data, starts, sizes, [&](int64_t, ByteRange list) {
    const auto copy = [&](ByteRange value) {
      if (++count >= ends.size || value.size() > values.size - position) return false;
      copy_short(values.data + position, value.begin, value.size());
      ends[count] = position += value.size();
      return true;
    };
    return are_lists ? each_field(list, copy) : copy(list);
  });
  return is_complete ? position : BOUNDS;
}

}  // namespace rm
