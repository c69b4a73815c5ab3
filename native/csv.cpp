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
enum { DIRTY = 1 << 30 };  // in an info before its row is committed: the field has to be unescaped

// A row so far. opened: fields in quotes, inner: delimiters in them. stray: where the first field starts that goes on
// after its closing quote, the row if that is none of the columns; -1 if there is none.
struct Row {
  int64_t start, line;
  int64_t field_start = start, column = 0, opened = 0, inner = 0, stray = -1;
  int32_t dirty_field = 0, dirty_row = 0;
};

struct Scanner {
  Span<uint8_t> data;
  const CsvDialect dialect;
  Span<int32_t> starts, infos;  // [columns, room]
  Span<int64_t> rows;           // [3, room]
  int64_t room;
  Span<CsvBadRow> bad;
  CsvScan scan;
  Row row{scan.at, scan.line};
  int64_t block = scan.at;               // the next 64 bytes
  int64_t literal = -1, closed_at = -1;  // the byte after the last escape; what may be the last closing quote
  Mode mode = scan.is_skipping ? SKIP : PLAIN;

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
  bool is_half_crlf(int64_t at) const { return data[at] == '\r' && at + 1 == data.size && !scan.is_final; }

  void run() {
    if (block >= scan.limit) return;
    do {
      while (block < data.size) {
        const Then then = read_block();
        if (then == FULL) return;
        if (then == GO_ON) block += BLOCK;
      }
    } while (at_end() == RESCAN);
  }

  // The info of the field [start, stop): without its quotes, unless it has to be unescaped.
  int32_t info_of(int64_t &start, int64_t stop) {
    const int32_t length = static_cast<int32_t>(stop - start);
    if (mode == PLAIN) return length | row.dirty_field;
    if (stop != closed_at + 1) {
      if (row.stray < 0) row.stray = row.column < dialect.columns ? start : row.start;
      return length | FIELD_QUOTED | DIRTY;
    }
    if (row.dirty_field) return length | FIELD_QUOTED | DIRTY;
    start++;
    return (length - 2) | FIELD_QUOTED;
  }

  // The next 64 bytes. Where fields are not wanted, those without quotes are looked at for line ends alone.
  Then read_block() {
    const int64_t base = block;
    const uint64_t quotes = mask(base, dialect.quote), ends = mask(base, '\n') | mask(base, '\r');
    const uint64_t special = mask(base, dialect.escape) | mask(base, dialect.comment);
    const uint64_t borders = mask(base, dialect.delimiter) | ends;
    const bool by_lines = !(dialect.columns | dialect.trim | quotes | special) && mode != SKIP &&
                          mode != INSIDE && literal < base;
    for (uint64_t events = by_lines ? ends : borders | quotes | special; events; events &= events - 1)
      if (const Then then = event(base + first_bit(events))) return then;
    if (by_lines && borders) {
      row.field_start = max(row.field_start, base + BLOCK - leading_zeros(borders));
      mode = PLAIN;
    }
    return GO_ON;
  }

  // One delimiter, line end, quote, escape or comment sign.
  RM_INLINE Then event(int64_t at) {
    const uint8_t byte = data[at];
    const bool newline = is_line_end(byte);
    if (at == literal || (mode == INSIDE && newline)) {
      if (newline) scan.line += lines(at);
    } else if (newline) {
      return line_end(at);
    } else if (mode == INSIDE) {
      inside(byte, at);
    } else if (mode != SKIP) {
      if (byte == dialect.delimiter) end_field(at);
      else outside(byte, at);
    }
    return GO_ON;
  }

  // A quote, an escape or a delimiter inside quotes.
  void inside(uint8_t byte, int64_t at) {
    if (byte == dialect.quote) {
      mode = dialect.is_doubled ? CLOSED : REST;
      closed_at = at;
    } else if (byte == dialect.escape) {
      literal = at + 1;
      row.dirty_field = DIRTY;
    } else if (byte == dialect.delimiter) {
      row.inner++;
    }
  }

  // A quote, an escape or a comment outside quotes or after them.
  void outside(uint8_t byte, int64_t at) {
    if (mode == CLOSED) {
      mode = REST;
      if (at == closed_at + 1) {  // _csv.c looks for a quote here, not for an escape
        if (byte == dialect.quote) mode = INSIDE;
        row.dirty_field = DIRTY;
        return;
      }
    }
    if (byte == dialect.escape) {
      literal = at + 1;
      row.dirty_field = DIRTY;
    } else if (byte == dialect.quote) {
      if (mode == PLAIN && are_blanks(row.field_start, at)) {
        row.field_start = at;
        mode = INSIDE;
        row.opened++;
      }
    } else if (at == row.start) {
      mode = SKIP;
    }
  }

  // Whether nothing, or with trim nothing but blanks, stands in [start, stop).
  bool are_blanks(int64_t start, int64_t stop) const {
    while (dialect.trim && start < stop && is_blank(data[start])) start++;
    return start == stop;
  }

  // The field ends before `at`: notes where it lies.
  RM_INLINE void end_field(int64_t at) {
    int64_t start = row.field_start, stop = at;
    if (dialect.trim) {
      while (stop > start && stop - 1 != literal && is_blank(data[stop - 1])) stop--;
      while (mode == PLAIN && start < stop && is_blank(data[start])) start++;
    }
    const int32_t info = info_of(start, stop);
    if (row.column < dialect.columns) {
      starts[row.column * room + scan.rows] = static_cast<int32_t>(start);
      infos[row.column * room + scan.rows] = info;
    }
    row.dirty_row |= info & DIRTY;
    row.dirty_field = 0;
    row.column++;
    row.field_start = at + 1;
    mode = PLAIN;
  }

  // A CR or LF outside quotes: the row, or what is skipped, ends. A blank line is a row of one empty field where rows
  // have one column, as `csv.writer` writes a null there, and elsewhere no row, which is counted.
  Then line_end(int64_t at) {
    if (at < row.start) return GO_ON;
    if (is_half_crlf(at)) {
      if (mode == SKIP) scan.at = at;
      return FULL;
    }
    if (mode != SKIP) {
      const bool blank = at == row.start && lines(at);
      const bool is_row = at > row.start || (blank && dialect.columns == 1);
      scan.blanks += blank && !is_row;
      if (is_row && end_row(at)) return RESCAN;
    }
    mode = PLAIN;
    scan.line += lines(at);
    scan.at = after_line(at);
    row = {scan.at, scan.line};
    const bool is_full = (dialect.columns && scan.rows == room) || scan.bad == bad.size;
    return is_full || scan.at >= scan.limit ? FULL : GO_ON;
  }

  // The row ends before `at`: commits it, or lists it as bad; RESCAN if it was too long.
  Then end_row(int64_t at) {
    if (at - row.start > dialect.max_row_bytes) return read_anew();
    end_field(at);
    const int64_t width = row.column, columns = dialect.columns;
    if (!columns) {
      scan.rows++;
    } else if (row.stray >= 0 && !dialect.is_lenient) {
      refuse(CSV_STRAY_QUOTE, row.stray, are_rows(at));
    } else if (width > columns || (width < columns && !dialect.is_ragged)) {
      refuse(width, row.start, are_rows(at));
    } else {
      const bool is_across = scan.line > row.line;
      scan.quoted_fields += row.opened;
      if (is_across ? !are_rows(at) : row.inner > 0) scan.needed++;
      else if (is_across && scan.across++ == 0) scan.first_across = row.line;
      for (int64_t column = 0; row.dirty_row && column < width; column++) {
        const int64_t place = column * room + scan.rows;
        if (infos[place] & DIRTY)
          infos[place] = unescape(starts[place], infos[place] & FIELD_LENGTH) | (infos[place] & FIELD_QUOTED);
      }
      rows[scan.rows] = width;
      rows[room + scan.rows] = scan.rows + scan.bad;
      rows[2 * room + scan.rows] = row.line;
      scan.rows++;
    }
    return GO_ON;
  }

  // Whether each line of the row up to `stop` would be a row if there were no quotes.
  bool are_rows(int64_t stop) const {
    int64_t at = row.start, line = at, fields = 1;
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
    bad[scan.bad] = {scan.rows + scan.bad, row.line, row.start, width, field, is_row};
    scan.bad++;
  }

  // The row is too long: lists it as bad, and goes on at its second physical line.
  Then read_anew() {
    const int64_t last = row.start + min(dialect.max_row_bytes, data.size - row.start);
    int64_t end = row.start;
    while (end < last && !is_line_end(data[end])) end++;
    const bool is_whole = end < last || (scan.is_final && end == data.size);
    refuse(CSV_TOO_LONG, row.start, is_whole && are_rows(end));
    mode = SKIP;
    literal = -1;
    scan.line = row.line;
    block = row.start;
    return RESCAN;
  }

  // The data ends: takes the last row if it is complete or can't be completed.
  Then at_end() {
    if (mode == SKIP) scan.at = data.size;
    if (mode == SKIP || row.start >= data.size) return FULL;
    const bool is_open = mode == INSIDE || literal == data.size;
    if (scan.is_final ? is_open : data.size - row.start > dialect.max_row_bytes) return read_anew();
    if (!scan.is_final) return FULL;
    if (end_row(data.size)) return RESCAN;
    scan.at = data.size;
    return FULL;
  }

  // Writes the text that the raw field [start, start + length) stands for over it; returns its length.
  int32_t unescape(int64_t start, int64_t length) const {
    int64_t into = start, at = start;
    const int64_t stop = start + length;
    Mode within = PLAIN;
    if (at < stop && data[at] == dialect.quote) {
      within = INSIDE;
      at++;
    }
    while (at < stop) {
      uint8_t byte = data[at++];
      if (within == CLOSED) {
        within = byte == dialect.quote ? INSIDE : REST;
      } else if (byte == dialect.escape) {
        if (at == stop) break;
        byte = data[at++];
      } else if (within == INSIDE && byte == dialect.quote) {
        within = dialect.is_doubled ? CLOSED : REST;
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
  const int64_t marks[] = {dialect.delimiter, dialect.quote, dialect.escape, dialect.comment};
  for (const int64_t byte : marks)
    if (byte == '\n' || byte == '\r') return BOUNDS;
  if (columns < 0 || dialect.max_row_bytes < 0 || dialect.max_row_bytes > FIELD_LENGTH + 1) return BOUNDS;
  if (columns && (room < 1 || room > INT32_MAX || columns > INT32_MAX)) return BOUNDS;
  if (starts.size < columns * room || infos.size < columns * room) return BOUNDS;
  scan.rows = scan.bad = scan.blanks = scan.quoted_fields = scan.needed = scan.across = scan.first_across = 0;
  Scanner scanner{data, dialect, starts, infos, rows, room, bad, scan};
  scanner.run();
  scan = scanner.scan;
  scan.line = scanner.row.line;
  scan.is_skipping = scanner.mode == SKIP;
  return 0;
}

}  // namespace rm
