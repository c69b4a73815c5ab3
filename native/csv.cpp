// Where each field of each row of a CSV file lies. Masks of 64 bytes find the delimiters, line ends, quotes and
// escapes; only these are looked at. A row that ends inside the buffer is committed: its fields are unescaped *in
// place* (a text never grows), so that what comes after sees plain text. The modes are the states of Python's `_csv.c`.
#include "masks.h"

namespace rm {
namespace {

enum Mode {
  PLAIN,   // in an unquoted field
  INSIDE,  // quotes are open
  CLOSED,  // after what may be the closing quote
  REST,    // in unquoted text after it
  SKIP     // in a comment, or in what remains of the line of a row that was too long
};
enum Then { GO_ON, RESCAN, FULL };
// In an info before its row is committed: the field has to be unescaped; it goes on after its closing quote.
enum { DIRTY = 1 << 30, STRAY = 1 << 28 };

// Where the scan stands. block: the next 64 bytes. opened: fields in quotes of this row, inner: delimiters in them.
// literal: where the byte after the last escape is.
struct State {
  CsvScan scan;
  int64_t block = scan.at, row_start = scan.at, row_line = scan.line, field_start = scan.at, column = 0;
  int64_t literal = -1, closed_at = -1, opened = 0, inner = 0;
  int32_t mode = scan.is_skipping ? SKIP : PLAIN, dirty_row = 0, dirty_field = 0;
};

struct Scanner {
  Span<uint8_t> data;
  const CsvDialect dialect;
  Span<int32_t> starts, infos;  // [columns, room]
  Span<int64_t> rows;           // [3, room]
  int64_t room;
  Span<CsvBadRow> bad;
  State state;

  uint64_t mask(int64_t base, int64_t byte) const {
    return byte > 255 ? 0 : byte_mask(data.data, base, data.size, static_cast<uint8_t>(byte));
  }

  static bool is_line_end(uint8_t byte) { return byte == '\n' || byte == '\r'; }
  bool is_blank(uint8_t byte) const { return byte == ' ' || (byte == '\t' && dialect.delimiter != '\t'); }
  // 1 if the CR or LF at `at` ends a physical line that was not counted yet: not the LF of a CRLF.
  int64_t lines(int64_t at) const { return !(data[at] == '\n' && at > 0 && data[at - 1] == '\r'); }
  int64_t after_line(int64_t at) const {
    return at + 1 + (data[at] == '\r' && at + 1 < data.size && data[at + 1] == '\n');
  }
  // Whether only the bytes that follow the buffer tell if an LF belongs to this CR.
  bool is_half_crlf(int64_t at) const { return data[at] == '\r' && at + 1 == data.size && !state.scan.is_final; }

  void run() {
    if (state.block >= state.scan.limit) return;
    do {
      while (state.block < data.size) {
        const Then then = read_block();
        if (then == FULL) return;
        if (then == GO_ON) state.block += BLOCK;
      }
    } while (at_end() == RESCAN);
  }

  // The info of the field [start, stop): without its quotes, unless it has to be unescaped.
  int32_t info_of(int64_t &start, int64_t stop) const {
    const int32_t length = static_cast<int32_t>(stop - start);
    if (state.mode == PLAIN) return length | state.dirty_field;
    if (stop != state.closed_at + 1) return length | FIELD_QUOTED | DIRTY | STRAY;
    if (state.dirty_field) return length | FIELD_QUOTED | DIRTY;
    start++;
    return (length - 2) | FIELD_QUOTED;
  }

  // The next 64 bytes. Where fields are not wanted, those without quotes are looked at for line ends alone.
  Then read_block() {
    const int64_t base = state.block;
    const uint64_t quotes = mask(base, dialect.quote), ends = mask(base, '\n') | mask(base, '\r');
    const uint64_t special = mask(base, dialect.escape) | mask(base, dialect.comment);
    const uint64_t borders = mask(base, dialect.delimiter) | ends;
    const bool by_lines = !(dialect.columns | dialect.trim | quotes | special) && state.mode != SKIP &&
                          state.mode != INSIDE && state.literal < base;
    for (uint64_t events = by_lines ? ends : borders | quotes | special; events; events &= events - 1)
      if (const Then then = event(base + first_bit(events))) return then;
    if (by_lines && borders) {
      state.field_start = max(state.field_start, base + BLOCK - leading_zeros(borders));
      state.mode = PLAIN;
    }
    return GO_ON;
  }

  // One delimiter, line end, quote, escape or comment sign.
  RM_INLINE Then event(int64_t at) {
    const uint8_t byte = data[at];
    const bool newline = is_line_end(byte);
    if (at == state.literal || (state.mode == INSIDE && newline)) {
      if (newline) state.scan.line += lines(at);
    } else if (state.mode == SKIP) {
      if (!newline) return GO_ON;
      if (is_half_crlf(at)) {
        state.scan.at = at;
        return FULL;
      }
      state.scan.line += lines(at);
      state.mode = PLAIN;
      return new_row(after_line(at));
    } else if (state.mode == INSIDE) {
      inside(byte, at);
    } else if (byte == dialect.delimiter) {
      end_field(at);
    } else if (newline) {
      return line_end(at);
    } else {
      outside(byte, at);
    }
    return GO_ON;
  }

  // A quote, an escape or a delimiter inside quotes.
  void inside(uint8_t byte, int64_t at) {
    if (byte == dialect.quote) {
      state.mode = dialect.is_doubled ? CLOSED : REST;
      state.closed_at = at;
    } else if (byte == dialect.escape) {
      state.literal = at + 1;
      state.dirty_field = DIRTY;
    } else if (byte == dialect.delimiter) {
      state.inner++;
    }
  }

  // A quote, an escape or a comment outside quotes or after them.
  void outside(uint8_t byte, int64_t at) {
    if (state.mode == CLOSED) {
      state.mode = REST;
      if (at == state.closed_at + 1) {  // _csv.c looks for a quote here, not for an escape
        if (byte == dialect.quote) state.mode = INSIDE;
        state.dirty_field = DIRTY;
        return;
      }
    }
    if (byte == dialect.escape) {
      state.literal = at + 1;
      state.dirty_field = DIRTY;
    } else if (byte == dialect.quote) {
      if (state.mode == PLAIN && are_blanks(state.field_start, at)) {
        state.field_start = at;
        state.mode = INSIDE;
        state.opened++;
      }
    } else if (at == state.row_start) {
      state.mode = SKIP;
    }
  }

  // Whether nothing, or with trim nothing but blanks, stands in [start, stop).
  bool are_blanks(int64_t start, int64_t stop) const {
    while (dialect.trim && start < stop && is_blank(data[start])) start++;
    return start == stop;
  }

  // The field ends before `at`: notes where it lies.
  RM_INLINE void end_field(int64_t at) {
    int64_t start = state.field_start, stop = at;
    if (dialect.trim) {
      while (stop > start && stop - 1 != state.literal && is_blank(data[stop - 1])) stop--;
      while (state.mode == PLAIN && start < stop && is_blank(data[start])) start++;
    }
    const int32_t info = info_of(start, stop);
    if (state.column < dialect.columns) {
      starts[state.column * room + state.scan.rows] = static_cast<int32_t>(start);
      infos[state.column * room + state.scan.rows] = info;
    }
    state.dirty_row |= info & (DIRTY | STRAY);
    state.dirty_field = 0;
    state.column++;
    state.field_start = at + 1;
    state.mode = PLAIN;
  }

  // A CR or LF outside quotes: the row ends. A blank line is a row of one empty field where rows have one column, as
  // `csv.writer` writes a null there, and elsewhere no row, which is counted.
  Then line_end(int64_t at) {
    if (at < state.row_start) return GO_ON;
    if (is_half_crlf(at)) return FULL;
    const bool blank = at == state.row_start && lines(at);
    const bool is_row = at > state.row_start || (blank && dialect.columns == 1);
    state.scan.blanks += blank && !is_row;
    if (is_row && end_row(at)) return RESCAN;
    state.scan.line += lines(at);
    return new_row(after_line(at));
  }

  // A row may start here; FULL if it has to wait for the next call.
  Then new_row(int64_t start) {
    state.row_start = state.field_start = state.scan.at = start;
    state.row_line = state.scan.line;
    const bool is_full = (dialect.columns && state.scan.rows == room) || state.scan.bad == bad.size;
    return is_full || start >= state.scan.limit ? FULL : GO_ON;
  }

  // The row ends before `at`: commits it, or lists it as bad; true if it was too long, so that its lines are read anew.
  bool end_row(int64_t at) {
    if (at - state.row_start > dialect.max_row_bytes) return read_anew() == RESCAN;
    end_field(at);
    const int64_t width = state.column, columns = dialect.columns;
    if (!columns) {
      state.scan.rows++;
    } else if ((state.dirty_row & STRAY) && !dialect.is_lenient) {
      refuse(CSV_STRAY_QUOTE, stray_field(min(width, columns)), are_rows(state.row_start, at));
    } else if (width == columns || (dialect.is_ragged && width < columns)) {
      count_quotes(at);
      for (int64_t column = 0; state.dirty_row && column < width; column++) {
        const int64_t place = column * room + state.scan.rows;
        if (infos[place] & DIRTY)
          infos[place] = unescape(starts[place], infos[place] & FIELD_LENGTH) | (infos[place] & FIELD_QUOTED);
      }
      rows[state.scan.rows] = width;
      rows[room + state.scan.rows] = state.scan.rows + state.scan.bad;
      rows[2 * room + state.scan.rows] = state.row_line;
      state.scan.rows++;
    } else {
      refuse(width, state.row_start, are_rows(state.row_start, at));
    }
    state.column = state.dirty_row = state.opened = state.inner = 0;
    return false;
  }

  // Where the first field that goes on after its closing quote starts; the row, if it is none of these columns.
  int64_t stray_field(int64_t columns) const {
    for (int64_t column = 0; column < columns; column++)
      if (infos[column * room + state.scan.rows] & STRAY) return starts[column * room + state.scan.rows];
    return state.row_start;
  }

  // Counts what the quotes of a row hold, before it is unescaped.
  void count_quotes(int64_t stop) {
    CsvScan &scan = state.scan;
    const int64_t delimiters = state.inner + state.column - 1, each = dialect.columns - 1;  // of a line that is a row
    scan.quoted_fields += state.opened;
    const bool is_plain = each && dialect.comment > 255 && dialect.escape > 255;
    if (scan.line == state.row_line) {
      scan.needed += state.inner > 0;
    } else if ((is_plain && (delimiters < 2 * each || delimiters % each)) || !are_rows(state.row_start, stop)) {
      scan.needed++;
    } else if (scan.across++ == 0) {
      scan.first_across = state.row_line;
    }
  }

  // Whether each line in [start, stop) would be a row if there were no quotes.
  bool are_rows(int64_t start, int64_t stop) const {
    int64_t at = start, line = start, fields = 1;
    for (; at <= stop; at++) {
      const uint8_t byte = at == stop ? '\n' : data[at];
      if (is_line_end(byte)) {
        if (at > line && data[line] != dialect.comment && fields != dialect.columns) return false;
        line = at + 1;
        fields = 1;
      } else if (byte == dialect.delimiter) {
        fields++;
      } else if (byte == dialect.escape) {
        at++;
      }
    }
    return at == stop + 1;  // no escape makes the line end a part of a field
  }

  void refuse(int64_t width, int64_t field, bool is_row) {
    bad[state.scan.bad] = {state.scan.rows + state.scan.bad, state.row_line, state.row_start, width, field, is_row};
    state.scan.bad++;
    state.column = state.opened = state.inner = state.dirty_row = state.dirty_field = 0;
  }

  // The row is too long: lists it as bad, and goes on at its second physical line.
  Then read_anew() {
    const int64_t start = state.row_start, last = start + min(dialect.max_row_bytes, data.size - start);
    int64_t end = start;
    while (end < last && !is_line_end(data[end])) end++;
    const bool is_whole = end < last || (state.scan.is_final && end == data.size);
    refuse(CSV_TOO_LONG, start, is_whole && are_rows(start, end));
    state.mode = SKIP;
    state.literal = -1;
    state.scan.line = state.row_line;
    state.block = start;
    return RESCAN;
  }

  // The data ends: takes the last row if it is complete or can't be completed.
  Then at_end() {
    CsvScan &scan = state.scan;
    if (state.mode == SKIP) scan.at = data.size;
    if (state.mode == SKIP || state.row_start >= data.size) return FULL;
    const bool is_open = state.mode == INSIDE || state.literal == data.size;
    if (scan.is_final ? is_open : data.size - state.row_start > dialect.max_row_bytes) return read_anew();
    if (!scan.is_final) return FULL;
    if (end_row(data.size)) return RESCAN;
    scan.at = state.row_start = data.size;
    return FULL;
  }

  // Writes the text that the raw field [start, start + length) stands for over it; returns its length.
  int32_t unescape(int64_t start, int64_t length) const {
    int64_t into = start, at = start;
    const int64_t stop = start + length;
    int mode = PLAIN;
    if (at < stop && data[at] == dialect.quote) {
      mode = INSIDE;
      at++;
    }
    while (at < stop) {
      uint8_t byte = data[at++];
      if (mode == CLOSED) {
        mode = byte == dialect.quote ? INSIDE : REST;
      } else if (byte == dialect.escape) {
        if (at == stop) break;
        byte = data[at++];
      } else if (mode == INSIDE && byte == dialect.quote) {
        mode = dialect.is_doubled ? CLOSED : REST;
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
  if (data.size > INT32_MAX || scan.at < 0 || scan.at > data.size || bad.size < 1) return BOUNDS;
  const auto is_line_end = [](int64_t byte) { return byte == '\n' || byte == '\r'; };
  if (is_line_end(dialect.delimiter) || is_line_end(dialect.quote)) return BOUNDS;
  if (is_line_end(dialect.escape) || is_line_end(dialect.comment)) return BOUNDS;
  if (columns < 0 || dialect.max_row_bytes < 0 || dialect.max_row_bytes > FIELD_LENGTH + 1) return BOUNDS;
  if (columns && (room < 1 || room > INT32_MAX || columns > INT32_MAX)) return BOUNDS;
  if (starts.size < columns * room || infos.size < columns * room) return BOUNDS;
  scan.rows = scan.bad = scan.blanks = scan.quoted_fields = scan.needed = scan.across = scan.first_across = 0;
  Scanner scanner{data, dialect, starts, infos, rows, room, bad, {scan}};
  scanner.run();
  scan = scanner.state.scan;
  scan.line = scanner.state.row_line;
  scan.is_skipping = scanner.state.mode == SKIP;
  return 0;
}

}  // namespace rm
