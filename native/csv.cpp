// Finds the fields of each row of a CSV file. Masks of 64 bytes find the delimiters, line ends, quotes and escapes, and only
// these bytes are examined one by one. Once a row is complete, its fields are unescaped in place, so that later code sees
// plain text. This never makes a text longer. The states are those of Python's csv module (Modules/_csv.c), with the same
// results.
#include "masks.h"

namespace rm {
namespace {

enum class State {
  UNQUOTED,  // in an unquoted field
  QUOTED,    // in quotes
  CLOSED,    // after a quote that may be the closing one
  STRAY,     // in text after the closing quote
  SKIPPING   // in a comment, or in the rest of the line of a row that was too long
};
enum class Next { CONTINUE, RESCAN, RETURN };  // what to do after an event
constexpr int32_t DIRTY_BIT = 1 << 30;  // in an info, until its row is complete: the field has to be unescaped

// The row that is being read.
struct Row {
  int64_t start, line;
  int64_t field_start = start, column = 0;
  int64_t quoted_fields = 0, inner_delimiters = 0;  // fields in quotes, and delimiters in them
  int64_t stray_start = -1;  // start of the first field that goes on after its closing quote. If that is none of the
                             // columns, start of the row. -1: there is none
  int32_t dirty_field = 0, dirty_row = 0;  // DIRTY_BIT or 0
};

struct Scanner {
  Span<uint8_t> data;
  const CsvDialect dialect;
  Span<int32_t> starts, infos;  // [columns, room]
  Span<int64_t> rows;           // [3, room]
  int64_t room;                 // rows
  Span<CsvBadRow> bad;
  CsvScan scan;
  Row row{scan.position, scan.line};
  int64_t block = scan.position;  // offset of the next 64 bytes
  int64_t literal = -1;           // offset of the byte after the last escape, which has no special meaning
  int64_t closed_at = -1;         // offset of the last quote that may be a closing one
  State state = scan.is_skipping ? State::SKIPPING : State::UNQUOTED;
  // Blanks are both delimiters and trimmed, so a run of them is one delimiter, and those at the ends of a row are none.
  const bool joins_blanks = dialect.trims && dialect.delimiter == ' ';

  uint64_t mask(int64_t base, int64_t byte) const {
    return byte > 255 ? 0 : byte_mask(data.data, base, data.size, static_cast<uint8_t>(byte));
  }

  static bool is_line_end(uint8_t byte) { return byte == '\n' || byte == '\r'; }
  bool is_blank(uint8_t byte) const { return byte == ' ' || (byte == '\t' && dialect.delimiter != '\t'); }
  // Returns 1 if a CR or LF ends a physical line that was not counted yet. The LF of a CRLF does not.
  int64_t lines(int64_t at) const { return !(data[at] == '\n' && at > 0 && data[at - 1] == '\r'); }
  int64_t after_line(int64_t at) const {
    return at + 1 + (data[at] == '\r' && at + 1 < data.size && data[at + 1] == '\n');
  }
  // Returns whether a CR is the last byte of the buffer, so that it is unknown if an LF belongs to it.
  bool is_half_crlf(int64_t at) const { return data[at] == '\r' && at + 1 == data.size && !scan.is_final; }

  void run() {
    if (block >= scan.limit) return;
    do {
      while (block < data.size) {
        const Next next = read_block();
        if (next == Next::RETURN) return;
        if (next == Next::CONTINUE) block += BLOCK;
      }
    } while (end_data() == Next::RESCAN);
  }

  // Returns the info of the field [start, stop). Excludes its quotes, unless it has to be unescaped.
  int32_t info_of(int64_t &start, int64_t stop) {
    const int32_t length = static_cast<int32_t>(stop - start);
    if (state == State::UNQUOTED) return length | row.dirty_field;
    if (stop != closed_at + 1) {  // there is text after the closing quote
      if (row.stray_start < 0) row.stray_start = row.column < dialect.columns ? start : row.start;
      return length | FIELD_QUOTED_BIT | DIRTY_BIT;
    }
    if (row.dirty_field) return length | FIELD_QUOTED_BIT | DIRTY_BIT;
    start++;
    return (length - 2) | FIELD_QUOTED_BIT;
  }

  // Reads the next 64 bytes. If only rows are requested, blocks without quotes are searched for line ends only.
  Next read_block() {
    const int64_t base = block;
    const uint64_t quotes = mask(base, dialect.quote), ends = mask(base, '\n') | mask(base, '\r');
    const uint64_t special = mask(base, dialect.escape) | mask(base, dialect.comment);
    const uint64_t borders = mask(base, dialect.delimiter) | ends;
    const bool by_lines = !(dialect.columns | dialect.trims | quotes | special) && state != State::SKIPPING &&
                          state != State::QUOTED && literal < base;
    for (uint64_t events = by_lines ? ends : borders | quotes | special; events; events &= events - 1)
      if (const Next next = handle(base + first_bit(events)); next != Next::CONTINUE) return next;
    if (by_lines && borders) {
      // The delimiters were not handled. What matters of them is where the last field starts.
      row.field_start = max(row.field_start, base + BLOCK - leading_zeros(borders));
      state = State::UNQUOTED;
    }
    return Next::CONTINUE;
  }

  // Handles a delimiter, line end, quote, escape or comment sign.
  RM_INLINE Next handle(int64_t at) {
    const uint8_t byte = data[at];
    const bool newline = is_line_end(byte);
    if (at == literal || (state == State::QUOTED && newline)) {
      if (newline) scan.line += lines(at);
    } else if (newline) {
      return end_line(at);
    } else if (state == State::QUOTED) {
      handle_in_quotes(byte, at);
    } else if (state != State::SKIPPING) {
      if (byte != dialect.delimiter) handle_outside_quotes(byte, at);
      else if (!joins_blanks || !is_blank_field(at)) end_field(at);
    }
    return Next::CONTINUE;
  }

  // Handles a quote, an escape or a delimiter in quotes.
  void handle_in_quotes(uint8_t byte, int64_t at) {
    if (byte == dialect.quote) {
      state = dialect.is_doubled ? State::CLOSED : State::STRAY;
      closed_at = at;
    } else if (byte == dialect.escape) {
      literal = at + 1;
      row.dirty_field = DIRTY_BIT;
    } else if (byte == dialect.delimiter) {
      row.inner_delimiters++;
    }
  }

  // Handles a quote, an escape or a comment sign before quotes, after them, or in an unquoted field.
  void handle_outside_quotes(uint8_t byte, int64_t at) {
    if (state == State::CLOSED) {
      state = State::STRAY;
      if (at == closed_at + 1) {  // a second quote. As in _csv.c, an escape has no meaning here
        if (byte == dialect.quote) state = State::QUOTED;
        row.dirty_field = DIRTY_BIT;
        return;
      }
    }
    if (byte == dialect.escape) {
      literal = at + 1;
      row.dirty_field = DIRTY_BIT;
    } else if (byte == dialect.quote) {
      if (state == State::UNQUOTED && are_blanks(row.field_start, at)) {
        row.field_start = at;
        state = State::QUOTED;
        row.quoted_fields++;
      }
    } else if (at == row.start) {  // a comment sign
      state = State::SKIPPING;
    }
  }

  // Returns whether [start, stop) is empty or, if blanks are trimmed, blank.
  bool are_blanks(int64_t start, int64_t stop) const {
    while (dialect.trims && start < stop && is_blank(data[start])) start++;
    return start == stop;
  }

  // Returns whether the field before `at` is not in quotes and consists of blanks.
  bool is_blank_field(int64_t at) const { return state == State::UNQUOTED && are_blanks(row.field_start, at); }

  // Ends the field before `at`.
  RM_INLINE void end_field(int64_t at) {
    int64_t start = row.field_start, stop = at;
    if (dialect.trims) {
      while (stop > start && stop - 1 != literal && is_blank(data[stop - 1])) stop--;
      while (state == State::UNQUOTED && start < stop && is_blank(data[start])) start++;
    }
    const int32_t info = info_of(start, stop);
    if (row.column < dialect.columns) {
      starts[row.column * room + scan.rows] = static_cast<int32_t>(start);
      infos[row.column * room + scan.rows] = info;
    }
    row.dirty_row |= info & DIRTY_BIT;
    row.dirty_field = 0;
    row.column++;
    row.field_start = at + 1;
    state = State::UNQUOTED;
  }

  // Ends the row, or the skipped line, at a CR or LF outside quotes. If rows have one column, a blank line is a row with an
  // empty field, since that is how csv.writer writes None. Otherwise it is not a row, and is counted.
  Next end_line(int64_t at) {
    if (at < row.start) return Next::CONTINUE;  // the LF of a CRLF
    if (is_half_crlf(at)) {
      if (state == State::SKIPPING) scan.position = at;
      return Next::RETURN;
    }
    if (state != State::SKIPPING) {
      const bool is_empty = at == row.start || (joins_blanks && row.column == 0 && is_blank_field(at));
      const bool blank = is_empty && lines(at);
      const bool is_row = !is_empty || (blank && dialect.columns == 1);
      scan.blank_lines += blank && !is_row;
      if (is_row && end_row(at) == Next::RESCAN) return Next::RESCAN;
    }
    state = State::UNQUOTED;
    scan.line += lines(at);
    scan.position = after_line(at);
    row = {scan.position, scan.line};
    const bool is_full = (dialect.columns && scan.rows == room) || scan.bad_rows == bad.size;
    return is_full || scan.position >= scan.limit ? Next::RETURN : Next::CONTINUE;
  }

  // Ends the row before `at`: completes it, or lists it as bad. Returns RESCAN if it was too long.
  Next end_row(int64_t at) {
    if (at - row.start > dialect.max_row_bytes) return skip_long_row();
    if (!joins_blanks || row.column == 0 || !is_blank_field(at)) end_field(at);
    const int64_t width = row.column, columns = dialect.columns;
    if (!columns) {
      scan.rows++;
    } else if (row.stray_start >= 0 && !dialect.is_lenient) {
      refuse(static_cast<int64_t>(CsvRowFault::STRAY_QUOTE), row.stray_start, are_rows(at));
    } else if (width > columns || (width < columns && !dialect.is_ragged)) {
      refuse(width, row.start, are_rows(at));
    } else {
      const bool is_across = scan.line > row.line;
      scan.quoted_fields += row.quoted_fields;
      if (is_across ? !are_rows(at) : row.inner_delimiters > 0) scan.rows_needing_quotes++;
      else if (is_across && scan.rows_across_lines++ == 0) scan.first_across_line = row.line;
      for (int64_t column = 0; row.dirty_row && column < width; column++) {
        const int64_t cell = column * room + scan.rows;
        const int32_t info = infos[cell];
        if (info & DIRTY_BIT)
          infos[cell] = unescape(starts[cell], info & FIELD_LENGTH_MASK) | static_cast<int32_t>(info & FIELD_QUOTED_BIT);
      }
      rows[scan.rows] = width;
      rows[room + scan.rows] = scan.rows + scan.bad_rows;
      rows[2 * room + scan.rows] = row.line;
      scan.rows++;
    }
    return Next::CONTINUE;
  }

  // Returns whether each line of the row up to `stop` would be a row if quotes were text.
  bool are_rows(int64_t stop) const {
    int64_t at = row.start, line = at, fields = 1;
    for (; at <= stop; at++) {
      const uint8_t byte = at == stop ? '\n' : data[at];
      if (is_line_end(byte)) {
        if (at > line && data[line] != dialect.comment && fields != dialect.columns) return false;
        line = at + 1;
        fields = 1;
      } else if (byte == dialect.delimiter) {
        // Of a run of blanks inside a line, the last one counts.
        fields += !joins_blanks || (!are_blanks(line, at) && at + 1 < stop && !is_blank(data[at + 1]) && !is_line_end(data[at + 1]));
      } else if (byte == dialect.escape) {
        at++;
      }
    }
    return at == stop + 1;  // false if an escape makes the last line end part of a field
  }

  void refuse(int64_t width, int64_t field_start, bool is_good_as_text) {
    bad[scan.bad_rows] = {scan.rows + scan.bad_rows, row.line, row.start, width, field_start, is_good_as_text};
    scan.bad_rows++;
  }

  // Lists the row as too long, and continues at its second line. So a quote that is never closed costs one line.
  Next skip_long_row() {
    const int64_t last = row.start + min(dialect.max_row_bytes, data.size - row.start);
    int64_t end = row.start;
    while (end < last && !is_line_end(data[end])) end++;
    const bool is_complete = end < last || (scan.is_final && end == data.size);
    refuse(static_cast<int64_t>(CsvRowFault::TOO_LONG), row.start, is_complete && are_rows(end));
    state = State::SKIPPING;
    literal = -1;
    scan.line = row.line;
    block = row.start;
    return Next::RESCAN;
  }

  // Handles the end of the data. Ends the last row if the file ends too, or if the row is too long to be completed.
  Next end_data() {
    if (state == State::SKIPPING) scan.position = data.size;
    if (state == State::SKIPPING || row.start >= data.size) return Next::RETURN;
    const bool is_open = state == State::QUOTED || literal == data.size;
    if (scan.is_final ? is_open : data.size - row.start > dialect.max_row_bytes) return skip_long_row();
    if (!scan.is_final) return Next::RETURN;
    if (end_row(data.size) == Next::RESCAN) return Next::RESCAN;
    scan.position = data.size;
    return Next::RETURN;
  }

  // Replaces the raw field [start, start + length) by its unescaped text. Returns the length of the text.
  int32_t unescape(int64_t start, int64_t length) const {
    int64_t into = start, at = start;
    const int64_t stop = start + length;
    State field_state = State::UNQUOTED;
    if (at < stop && data[at] == dialect.quote) {
      field_state = State::QUOTED;
      at++;
    }
    while (at < stop) {
      uint8_t byte = data[at++];
      if (field_state == State::CLOSED) {
        field_state = byte == dialect.quote ? State::QUOTED : State::STRAY;
      } else if (byte == dialect.escape) {
        if (at == stop) break;
        byte = data[at++];
      } else if (field_state == State::QUOTED && byte == dialect.quote) {
        field_state = dialect.is_doubled ? State::CLOSED : State::STRAY;
        continue;
      }
      data[into++] = byte;
    }
    return static_cast<int32_t>(into - start);
  }
};

}  // namespace

int64_t rm_scan_csv(Span<uint8_t> data, const CsvDialect &dialect, CsvScan &scan, Span<int32_t> starts,
                    Span<int32_t> infos, Span<int64_t> rows, Span<CsvBadRow> bad) {
  const int64_t room = rows.size / 3, columns = dialect.columns;
  if (data.size > INT32_MAX || scan.position < 0 || scan.position > data.size || bad.size < 1) return BOUNDS;
  const int64_t special_bytes[] = {dialect.delimiter, dialect.quote, dialect.escape, dialect.comment};
  for (const int64_t byte : special_bytes)
    if (byte == '\n' || byte == '\r') return BOUNDS;
  if (columns < 0 || dialect.max_row_bytes < 0 || dialect.max_row_bytes > FIELD_LENGTH_MASK + 1) return BOUNDS;
  if (columns && (room < 1 || room > INT32_MAX || columns > INT32_MAX)) return BOUNDS;
  if (starts.size < columns * room || infos.size < columns * room) return BOUNDS;
  scan.rows = scan.bad_rows = scan.blank_lines = scan.quoted_fields = 0;
  scan.rows_needing_quotes = scan.rows_across_lines = scan.first_across_line = 0;
  Scanner scanner{data, dialect, starts, infos, rows, room, bad, scan};
  scanner.run();
  scan = scanner.scan;
  scan.line = scanner.row.line;
  scan.is_skipping = scanner.state == State::SKIPPING;
  return 0;
}

}  // namespace rm
