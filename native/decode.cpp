// Serialized Examples to columns. The first pass goes record by record: where each feature's values stand, and the value
// itself where there is one number. The second goes column by column, from located lists to values.
#include "features.h"

namespace rm {
namespace {

// How many varints end in [at, end): one at each byte without the bit that says that it goes on.
RM_INLINE int64_t count_varints(const uint8_t *at, const uint8_t *end, const uint8_t *limit) {
  int64_t count = 0;
  for (; at < end && limit - at >= BLOCK; at += BLOCK) {
    const uint64_t stops = ~high_mask(at);
    count += __builtin_popcountll(end - at >= BLOCK ? stops : stops << (BLOCK - (end - at)));
  }
  for (; at < end; at++) count += *at < 0x80;
  return count;
}

// Reads `count` varints that fit words and end at the bits `stops` after `at`, and up to VARINT_ROOM more, which mean
// nothing. None waits for the length of the one before it, and all are joined in vector code.
template <typename Word>
RM_INLINE void read_window(const uint8_t *at, uint64_t stops, int64_t *to, int64_t count) {
  Word words[BLOCK + VARINT_ROOM];
  int64_t next = 0;
  for (int64_t i = 0; i < count; i += VARINT_ROOM) {
    for (int64_t k = i; k < i + VARINT_ROOM; k++, stops &= stops - 1) {
      words[k] = load<Word>(at + next);
      next = first_bit(stops) + 1;
    }
  }
  for (int64_t i = 0; i < count; i += VARINT_ROOM)
    for (int64_t k = i; k < i + VARINT_ROOM; k++) to[k] = static_cast<int64_t>(first_varint(words[k]));
}

// Reads `count` varints of [at, end), in which so many end; gives how many it read before one that is too long.
RM_INLINE int64_t read_varints(const uint8_t *at, const uint8_t *end, const uint8_t *limit, int64_t *to, int64_t count) {
  constexpr int64_t LONG_RUN = 16;  // where one has more than eight bytes, the next ones may have, too
  for (int64_t i = 0; i < count;) {
    const uint64_t bits = limit - at >= 2 * BLOCK ? high_mask(at) : ~uint64_t{0};
    const uint64_t pairs = bits & bits >> 1, fours = pairs & pairs >> 2, eights = fours & fours >> 4;
    if (eights != 0) {
      for (const int64_t stop = min(i + LONG_RUN, count); i < stop; i++) {
        const Varint next = read_varint(at, end, limit);
        if (next.after == nullptr) return i;
        to[i] = static_cast<int64_t>(next.value);
        at = next.after;
      }
      continue;
    }
    const int64_t found = min<int64_t>(__builtin_popcountll(~bits), count - i);
    if (fours != 0) read_window<uint64_t>(at, ~bits, to + i, found);
    else if (bits != 0) read_window<uint32_t>(at, ~bits, to + i, found);
    else
      for (int64_t k = 0; k < found; k++) to[i + k] = at[k];
    i += found;
    at += BLOCK - leading_zeros(~bits);
  }
  return count;
}

// The cells of some columns and rows, as the interface gives them.
struct Cells {
  Span<CellColumn> columns;
  Span<int64_t> ints;
  Span<uint32_t> floats;
  Span<int64_t> at, sizes;
  Span<uint8_t> valid;
  int64_t rows;

  bool fit() const {
    if (valid.size != columns.size * bitmap_bytes() || at.size != sizes.size) return false;
    for (int64_t i = 0; i < columns.size; i++) {
      const int64_t mode = columns[i].mode;
      const int64_t size = mode == ONE_INT64 ? ints.size : mode == ONE_FLOAT ? floats.size : at.size;
      if (mode < ONE_INT64 || mode > STEPS || !Span<int64_t>{nullptr, size}.holds(columns[i].first, rows)) return false;
    }
    return true;
  }
  int64_t bitmap_bytes() const { return (rows + 7) / 8; }
  RM_INLINE uint8_t &bits(int64_t column, int64_t row) const { return valid[column * bitmap_bytes() + (row >> 3)]; }
  // Makes the cell a null.
  void clear(int64_t index, int64_t row) const {
    CellColumn &column = columns[index];
    const int64_t cell = column.first + row;
    column.nulls++;
    bits(index, row) &= static_cast<uint8_t>(~(1 << (row & 7)));
    if (column.mode == ONE_INT64) ints[cell] = 0;
    else if (column.mode == ONE_FLOAT) floats[cell] = 0;
    else at[cell] = sizes[cell] = 0;
  }
  // Makes a row as if it had not been read.
  void restore(int64_t row) const {
    for (int64_t i = 0; i < columns.size; i++) {
      bits(i, row) |= static_cast<uint8_t>(1 << (row & 7));
      if (columns[i].last_row == row) columns[i].last_row = -1;
    }
  }
};

// Reads one record into its cells. culprit: the column that it fails on, -1 if there is none.
struct RecordReader {
  const Cells &cells;
  Names &names;
  ByteSpan data;
  int64_t row, parts, others;
  int64_t found = 0, culprit = -1;

  RM_INLINE int64_t put_span(int64_t cell, ByteRange values) const {
    if (!values.is_there()) return UNUSUAL;
    cells.at[cell] = values.at - data.data;
    cells.sizes[cell] = values.size();
    return 0;
  }

  // Reads a Feature or FeatureList that is not empty; gives 0 or why it can't be read.
  RM_INLINE int64_t read_cell(const CellColumn &column, ByteRange value) const {
    static constexpr uint8_t TAGS[] = {INT64_TAG, FLOAT_TAG, BYTES_TAG, INT64_TAG, FLOAT_TAG, BYTES_TAG};
    const int64_t cell = column.first + row;
    if (column.mode == STEPS) return put_span(cell, are_plain_steps(value, false) ? value : NO_RANGE);
    const uint8_t tag = *value.at;
    const ByteRange list = read_content(value.at + 1, value.end);
    if (list.end != value.end) return UNUSUAL;
    if (tag != TAGS[column.mode]) return WRONG_KIND;
    if (column.mode == ONE_INT64) {
      const ByteRange run = plain_values(list, INT64_TAG);
      if (!run.is_there()) return UNUSUAL;
      const Varint number = read_varint(run.at, run.end, data.end());
      cells.ints[cell] = static_cast<int64_t>(number.value);
      return number.after == run.end ? 0 : WRONG_COUNT;
    }
    if (column.mode == ONE_FLOAT) {
      constexpr uint16_t HEAD = FIELD_1 | 4 << 8;  // a packed run of four bytes
      if ((list.size() != 6 || load<uint16_t>(list.at) != HEAD) && plain_values(list, FLOAT_TAG).size() != 4)
        return WRONG_COUNT;
      cells.floats[cell] = load<uint32_t>(list.end - 4);
      return 0;
    }
    if (column.mode == ONE_BYTES) {
      if (list.size() == 0) return WRONG_COUNT;
      const ByteRange text = next_field(list.at, list.end, FIELD_1);
      if (text.is_there() && text.end != list.end) return WRONG_COUNT;
      return put_span(cell, text);
    }
    return put_span(cell, plain_values(list, tag));
  }

  // Reads the value of a wanted column.
  RM_INLINE int64_t read_column(int64_t index, ByteRange value) {
    CellColumn &column = cells.columns[index];
    if (column.last_row == row) return UNUSUAL;  // of a key that comes again the last value counts
    column.last_row = row;
    found++;
    if (value.size() > 0 || column.mode == STEPS) return read_cell(column, value);
    cells.clear(index, row);
    return column.is_required ? MISSING_VALUE : 0;
  }

  // Reads the entries of the Features (part 1) or FeatureLists (part 2).
  int64_t read_map(ByteRange map, int64_t part) {
    const auto any = [](ByteRange) { return true; };
    return each_entry(map, part, names, data.end(), any, [&](int64_t slot, ByteRange value) -> int64_t {
      if (slot > 0 && slot <= cells.columns.size) {
        const int64_t status = read_column(slot - 1, value);
        if (RM_UNLIKELY(status != 0)) culprit = slot - 1;
        return status;
      }
      if (others == REFUSE_OTHERS) return UNUSUAL;
      if (others != CHECK_OTHERS) return 0;
      return (part == 1 ? is_plain_feature : are_plain_steps)(value, true) ? 0 : UNUSUAL;
    });
  }

  // Makes nulls of the columns that the record does not have.
  int64_t clear_absent() {
    for (int64_t i = 0; i < cells.columns.size; i++) {
      if (cells.columns[i].last_row == row) continue;
      cells.clear(i, row);
      if (cells.columns[i].is_required && culprit < 0) culprit = i;
    }
    return culprit < 0 ? 0 : MISSING_VALUE;
  }

  int64_t read_message(ByteRange message) {
    const int64_t status = each_map(message, parts, [&](auto part, auto map) { return read_map(map, part); });
    return status == 0 && found < cells.columns.size ? clear_absent() : status;
  }
};

// Calls visit(row, bytes) for the located lists of a column, up to a call that gives false; whether all were visited.
template <typename Visit>
RM_INLINE bool each_list(ByteSpan data, IntSpan at, IntSpan sizes, Visit visit) {
  constexpr int64_t AHEAD = 32;  // records are long: what comes soon is asked for early
  if (sizes.size != at.size) return false;
  for (int64_t row = 0; row < at.size; row++) {
    if (row + AHEAD < at.size) __builtin_prefetch(data.data + min(max<int64_t>(at[row + AHEAD], 0), data.size));
    const ByteRange list = range_of(data, at[row], sizes[row]);
    if (!list.is_there() || !visit(row, list)) return false;
  }
  return true;
}

}  // namespace

int64_t rm_make_names(Span<int64_t> table, int64_t most_names, int64_t text_bytes, Span<const ByteSpan> names,
                      IntSpan parts) {
  constexpr int64_t MOST = int64_t{1} << 30;
  if (most_names < 0 || most_names > MOST || text_bytes < 0 || text_bytes > MOST) return BOUNDS;
  const int64_t room = Names::room(most_names, text_bytes);
  if (!table) return room;
  if (table.size < room || parts.size != names.size) return BOUNDS;
  Names made(table);
  made.begin(most_names, text_bytes);
  for (int64_t i = 0; i < names.size; i++)
    if (made.add(Key({names[i].data, names[i].end()}, parts[i], names[i].end())) < 0) return BOUNDS;
  return room;
}

int64_t rm_locate_features(ByteSpan data, IntSpan starts, IntSpan lengths, int64_t parts, int64_t others,
                           Span<int64_t> table, Span<CellColumn> columns, Span<int64_t> ints, Span<uint32_t> floats,
                           Span<int64_t> at, Span<int64_t> sizes, Span<uint8_t> valid, Span<uint8_t> status,
                           Span<int64_t> culprits) {
  constexpr int64_t AHEAD = 4;
  const Cells cells{columns, ints, floats, at, sizes, valid, starts.size};
  Names names(table);
  if (lengths.size != cells.rows || status.size != cells.rows || culprits.size != cells.rows || !cells.fit()) return BOUNDS;
  if (parts == 0 ? columns.size != 1 : !names.fits()) return BOUNDS;
  int64_t bad = 0;
  for (int64_t row = 0; row < cells.rows; row++) {
    if (status[row] == UNREAD) {
      const ByteRange record = range_of(data, starts[row], lengths[row]);
      if (!record.is_there()) return BOUNDS;
      if (row + AHEAD < cells.rows) __builtin_prefetch(range_of(data, starts[row + AHEAD], 0).at);
      RecordReader reader{cells, names, data, row, parts, others};
      const int64_t reason = parts == 0 ? reader.read_column(0, record) : reader.read_message(record);
      if (reason != 0 && parts == 0) cells.clear(0, row);
      if (reason != 0 && parts != 0) cells.restore(row);
      status[row] = static_cast<uint8_t>(reason);
      culprits[row] = reader.culprit;
    }
    bad += status[row] != 0;
  }
  return bad;
}

int64_t rm_read_varints(ByteSpan data, IntSpan at, IntSpan sizes, Span<int64_t> offsets, Span<int64_t> values,
                        Span<uint8_t> bad) {
  if (offsets.size != at.size + 1 || bad.size != at.size) return BOUNDS;
  if (!values) offsets[0] = 0;
  const bool are_there = each_list(data, at, sizes, [&](int64_t row, ByteRange list) {
    const auto [next, end] = list;
    if (!values) {
      const bool is_cut = next < end && end[-1] >= 0x80;
      if (is_cut) bad[row] = PAST_END;
      offsets[row + 1] = offsets[row] + (is_cut ? 0 : count_varints(next, end, data.end()));
      return true;
    }
    const int64_t first = offsets[row], count = offsets[row + 1] - first;
    if (count < 0 || !values.holds(first, count + VARINT_ROOM)) return false;
    const int64_t done = read_varints(next, end, data.end(), values.data + first, count);
    if (done == count) return true;
    bad[row] = LONG_VARINT;
    memset(values.data + first + done, 0, static_cast<size_t>(8 * (count - done)));
    return true;
  });
  return are_there ? offsets[at.size] : BOUNDS;
}

int64_t rm_find_fields(ByteSpan data, IntSpan at, IntSpan sizes, Span<int64_t> offsets, Span<int64_t> value_at,
                       Span<int64_t> value_sizes) {
  if (offsets.size != at.size + 1 || value_at.size != value_sizes.size) return BOUNDS;
  int64_t number = offsets[0] = 0;
  const bool are_there = each_list(data, at, sizes, [&](int64_t row, ByteRange list) {
    const bool is_plain = each_field(list, [&](ByteRange value) {
      if (value_at && number >= value_at.size) return false;
      if (value_at) value_at[number] = value.at - data.data, value_sizes[number] = value.size();
      return ++number > 0;
    });
    offsets[row + 1] = number;
    return is_plain;
  });
  return are_there ? number : BOUNDS;
}

int64_t rm_copy_values(ByteSpan data, IntSpan at, IntSpan sizes, int64_t are_lists, Span<int64_t> ends,
                       Span<uint8_t> values) {
  if (ends.size < 1) return BOUNDS;
  int64_t number = 0, to = ends[0] = 0;
  const bool are_there = each_list(data, at, sizes, [&](int64_t, ByteRange list) {
    const auto copy = [&](ByteRange value) {
      if (++number >= ends.size || value.size() > values.size - to) return false;
      copy_short(values.data + to, value.at, value.size());
      ends[number] = to += value.size();
      return true;
    };
    return are_lists ? each_field(list, copy) : copy(list);
  });
  return are_there ? to : BOUNDS;
}

}  // namespace rm
