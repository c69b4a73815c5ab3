// The interface of librecordmill: every function that Python calls, declared once.
//
// Its text is compiled into the library. recordmill.base.native reads it there and makes a Python function of each
// declaration, a class of each struct and an integer of each enumerator, so declarations keep to a small part of C++:
//
//   - Functions are called rm_NAME and return int64_t, uint64_t, double or void.
//   - Span<T> is an array: Python passes a contiguous NumPy array of that dtype, or None for one that is not wanted.
//     What a function writes to is no const T. A Span of structs is an array of their fields' dtype.
//   - ByteSpan is Span<const uint8_t>, IntSpan is Span<const int64_t>.
//   - Span<const ByteSpan> is a sequence of arrays of any dtype, of which the function sees the bytes.
//   - Structs hold scalars only, and are passed by reference.
//
// A function checks its arguments against the sizes it is given before it touches memory, and returns BOUNDS if they do
// not fit; Python raises IndexError then. That is always a bug of the caller, never of a file.
#pragma once

#include "common.h"

namespace rm {

constexpr int64_t BOUNDS = INT64_MIN;  // a caller's sizes, offsets or indices do not fit together

#pragma GCC visibility push(default)
extern "C" {

// crc32c.cpp

// The instruction set that this machine has: 0 the processor family's first, 3 x86-64-v3.
int64_t rm_machine_level();
enum { CRC_TABLE, CRC_INSTRUCTION, CRC_FOLDING };  // ways; each needs more of the processor
// The CRC32C of data, going on from that of what stood before it (0 at the start). way: the best one that may be used.
int64_t rm_crc32c(ByteSpan data, int64_t crc, int64_t way);

// frames.cpp

// What a scan stopped at; MORE: nothing, it needs more room or bytes.
enum { GOOD, HEADER_CRC, FRAME_TOO_LONG, SHORT_HEADER, SHORT_PAYLOAD, PAYLOAD_CRC, MORE };

// Frames the payloads data[offsets[i] : offsets[i + 1]] contiguously; gives the bytes written. starts, lengths, crcs [n]:
// where each frame begins in out, its payload's bytes and CRC32C.
int64_t rm_frame(ByteSpan data, IntSpan offsets, Span<uint8_t> out, Span<int64_t> starts, Span<int64_t> lengths,
                 Span<uint32_t> crcs);

struct FrameScan {
  int64_t at, end;  // where the next header begins; of a hop where the file ends, which may be beyond the data
  int64_t max_record_bytes;
  int64_t final, check;  // the file ends with data; payloads' CRCs, too, which are 0 otherwise
  int64_t code;          // what the scan stopped at
};
// Finds the frames from scan.at on until starts, lengths and crcs [n] are full; gives how many, and moves scan.at.
int64_t rm_scan_frames(ByteSpan data, FrameScan &scan, Span<int64_t> starts, Span<int64_t> lengths,
                       Span<uint32_t> crcs);
// Goes from header to header in a window of a file, before which the footer of the frame before may stand; gives how
// many it found, and where in starts. digest [1]: goes on with all lengths, and the payload CRCs before headers and at
// the file's end.
int64_t rm_hop_frames(ByteSpan data, FrameScan &scan, Span<int64_t> starts, Span<uint64_t> digest);
// Where the next frame whose header is right begins, from byte `at` on, and, if whole, fits data; else data's end.
int64_t rm_next_frame(ByteSpan data, int64_t at, int64_t max_record_bytes, int64_t whole);
// Copies span i, sizes[i] bytes at starts[i] of blocks[which[i]], to out[targets[i] :]. which: NULL with one block.
// Gives the number of the first span that does not lie in its block, how many there are if all do.
int64_t rm_copy_spans(Span<const ByteSpan> blocks, Span<const int32_t> which, IntSpan starts, IntSpan sizes,
                      IntSpan targets, Span<uint8_t> out);

// order.cpp

// out[i] = SipHash-2-4 of data[starts[i] : starts[i] + lengths[i]] under (key0, key1)[which[i] - first], [0] without which.
int64_t rm_hash_spans(Span<const uint64_t> key0, Span<const uint64_t> key1, Span<const uint32_t> which, int64_t first,
                      ByteSpan data, IntSpan starts, IntSpan lengths, Span<uint64_t> out);
// Permutes each number within its stretch [edges[s], edges[s + 1]), which it lies in. stretches [n]: which one.
int64_t rm_permute(IntSpan numbers, IntSpan stretches, IntSpan edges, uint64_t key, Span<int64_t> out);

// Packs records into the first row of a step that has room for them. lengths [features, records]; limits [features]: of
// a row; left [rows, features]: scratch. places [records]: the row of each, counted over all steps; ends: the record
// after each step that is full, of which it gives the number.
int64_t rm_pack_rows(IntSpan lengths, IntSpan limits, Span<int64_t> left, Span<int64_t> places, Span<int64_t> ends);

// examples.cpp

// What a column of records is, and so how it is written. CONSTANT_SIZE: as many bytes in each record. MESSAGE: texts
// that take the place of the whole Feature.
enum { ONE_INT, INTS, CONSTANT_SIZE, FLOATS, TEXTS, MESSAGE };

// An entry of tf.train.Example's map, in all records. length: of CONSTANT_SIZE the bytes in each record; else values,
// where there are no splits. head_bytes: of CONSTANT_SIZE all before the data; else the key, `0A length name 12`, or 0:
// the one column is a Feature alone, which becomes field 1 of the record. Its five parts, empty where not wanted: valid,
// uint8 [rows]; splits, int64 [rows + 1]; values, int64, float32 or uint8; value_splits, int64, of texts; heads, uint8,
// with room of 16 bytes each or a multiple: the key; of ONE_INT 11 heads, [v] before a varint of v bytes.
struct ExampleColumn {
  int64_t way, length, head_bytes;
};

// Computes the frames of records from columns in the order of their names; returns the bytes of all frames.
// kept [columns * rows]: for the next call. sizes, starts, lengths [rows]: of all entries, of the frame, the payload.
int64_t rm_size_examples(Span<const ExampleColumn> columns, Span<const ByteSpan> parts, Span<int64_t> kept,
                         Span<int64_t> sizes, Span<int64_t> starts, Span<int64_t> lengths);
// Writes them. out: has 16 bytes more than they take. crcs [rows]: of the payloads.
int64_t rm_write_examples(Span<const ExampleColumn> columns, Span<const ByteSpan> parts, IntSpan kept, IntSpan sizes,
                          IntSpan starts, IntSpan lengths, Span<uint8_t> out, Span<uint32_t> crcs);

// decode.cpp: records to columns

// How a column is read: one value of each record, or a list that the second pass reads.
enum { ONE_INT64, ONE_FLOAT, ONE_BYTES, INT64_LISTS, FLOAT_LISTS, BYTES_LISTS, STEPS };
// Why a record is not good.
enum { PAST_END = 1, LONG_VARINT, UNUSUAL = 20, WRONG_KIND, WRONG_COUNT, MISSING_VALUE, UNREAD = 255 };
enum { SKIP_OTHERS, CHECK_OTHERS, REFUSE_OTHERS };  // what is done about features that are no columns

// first: its first cell. last_row: the last one that has it, -1 at first. nulls: how many cells were made nulls.
struct CellColumn {
  int64_t mode, first, is_required, last_row, nulls;
};

// Fills the cells of the records that are UNREAD; returns how many have another status than 0 then. parts: 1 for Example,
// 2 for SequenceExample; 0: each record is the Feature of the one column. table: of the columns' names in slots 1 ...;
// others are added. A column's cells are [rows] of ints, of floats (their bits), or of at and sizes (where its values
// stand; 0, 0 for a null). valid: bitmaps as Arrow has them, all ones at first. culprits: the column that a record fails
// on, or -1.
int64_t rm_locate_features(ByteSpan data, IntSpan starts, IntSpan lengths, int64_t parts, int64_t others,
                           Span<int64_t> table, Span<CellColumn> columns, Span<int64_t> ints, Span<uint32_t> floats,
                           Span<int64_t> at, Span<int64_t> sizes, Span<uint8_t> valid, Span<uint8_t> status,
                           Span<int64_t> culprits);

// A table of names is one array: this head, slots, the names' bytes.
struct NamesHead {
  int64_t slots, text, used, used_text;  // slot 0 stands for the beginning of a record; text: bytes
};
// text: where the name begins in the names' bytes. part: tells equal names apart; of a message, 1 or 2. next: the slot
// predicted after it. newest: the last slot of those whose hash is this slot's number, each with the one before it.
struct NameSlot {
  int64_t text, size, part, next, newest, before;
  uint64_t first, last;
};
// Makes a table of names in zeros; returns the numbers that it takes, with None for it as well. It has room for
// most_names, of so many bytes, which are added as they are met.
int64_t rm_make_names(Span<int64_t> table, int64_t most_names, int64_t text_bytes, Span<const ByteSpan> names,
                      IntSpan parts);

enum { VARINT_ROOM = 8 };  // values have room for so many more
// Without values counts the varints of packed lists: offsets [lists + 1]; bad: PAST_END where one is cut off. With them
// reads as many; bad: LONG_VARINT where one is too long; it and those after it are 0. Returns their number.
int64_t rm_read_varints(ByteSpan data, IntSpan at, IntSpan sizes, Span<int64_t> offsets, Span<int64_t> values,
                        Span<uint8_t> bad);
// Counts the length-delimited fields of lists (values of a BytesList, steps of a FeatureList), and finds where the
// content of each stands, if that is wanted. offsets [lists + 1].
int64_t rm_find_fields(ByteSpan data, IntSpan at, IntSpan sizes, Span<int64_t> offsets, Span<int64_t> value_at,
                       Span<int64_t> value_sizes);

// Copies values one after the other, or, if they are lists of length-delimited fields, the contents of these; returns
// their bytes. ends [values + 1]: from 0 on.
int64_t rm_copy_values(ByteSpan data, IntSpan at, IntSpan sizes, int64_t are_lists, Span<int64_t> ends,
                       Span<uint8_t> values);

// census.cpp

// What was seen of one name. first_NAME: the first record in which that was seen. values: of all lists together;
// least_values, most_values: in one list. texts: bytes values that are UTF-8 without control characters. last_row: for
// the census itself, -1 at first.
struct NameCounts {
  int64_t records, values, least_values, most_values, first_least, first_most, last_row;
  int64_t bytes_lists, float_lists, int64_lists, first_bytes, first_float, first_int64;
  int64_t bytes_values, texts, least_bytes, most_bytes, least_int, most_int, sum_int;
};

// Counts what is in the records that are UNREAD, by names that are added to the table; returns how many have another
// status than 0 (UNUSUAL) then, or -1 if there is no room for a name. counts: of each slot. parts [records]: which maps
// each has, 1, 2 or 3 for both.
int64_t rm_count_names(ByteSpan data, IntSpan starts, IntSpan lengths, int64_t first_record, Span<int64_t> table,
                       Span<NameCounts> counts, Span<uint8_t> status, Span<int64_t> parts);

// json.cpp

// Kinds of value; a string with a backslash is ESCAPED.
enum {
  JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_INT, JSON_FLOAT, JSON_STRING, JSON_ESCAPED, JSON_OBJECT, JSON_ARRAY, JSON_KINDS
};
// Why a line is no record. JSON_FULL is never seen by Python: something is full, and the line is read again.
enum {
  JSON_OK, JSON_SYNTAX, JSON_NOT_OBJECT, JSON_DEEP, JSON_DUPLICATE, JSON_TRAILING, JSON_CONTROL, JSON_ESCAPE,
  JSON_SURROGATE, JSON_NOT_UTF8, JSON_NUMBER, JSON_CUT, JSON_MANY, JSON_FULL
};
enum { JSON_DONE, JSON_TAPE_FULL, JSON_NAMES_FULL };  // what rm_scan_json has no room in
enum { JSON_NO_ELEMENT = 1, JSON_AFTER_ARRAY };                      // what is wrong with a file that is one array
enum { JSON_MOST_DEPTH = 60 };    // levels of nesting; records nested deeper are JSON_DEEP
enum { JSON_UNREADABLE = 0xFF };  // starts a line, in place of its first byte, that is JSON_NOT_UTF8

// A value on a tape, which has the values of many records in the order of the text.
struct JsonValue {
  int32_t head;    // node * 16 + kind
  int32_t around;  // the ordinal of the object or array around it among its node's values; of the record, at the top
  int32_t start, stop;  // its text, of a string what stands between the quotes
};
// A place in records; node 0 is the record itself. -1: none, as all is in node 0 at first.
struct JsonNode {
  int32_t element;      // of an array
  int32_t first, next;  // the members that were met first in this object, and after this one, last time
  int32_t count, last;  // values on the tape, and the ordinal of the object around the last of them
  int32_t is_plain;     // the key needs no escape
};
struct JsonError {
  int64_t line, wrong, at, line_start;
};
struct JsonScan {
  int64_t at, most_values;                       // where to go on; values in a line
  int64_t line, records, errors, values, nodes;  // results of this call; nodes in use
};
// Reads lines until the data ends, or records or errors are full, or something else is, which it returns. table: of
// the nodes' names, in slots of the same numbers; the part of a key is the object around it, and that of an array's
// elements, without a name, is -1 - the array. record_lines, record_values: the line and first value of each record.
int64_t rm_scan_json(ByteSpan data, Span<int64_t> table, Span<JsonNode> nodes, Span<JsonValue> tape,
                     Span<int32_t> record_lines, Span<int32_t> record_values, Span<JsonError> errors, JsonScan &scan);

struct JsonArray {
  int64_t depth, in_string, is_escaped, is_filled, elements;  // depth: -1 after its end. is_filled: a value has begun
};
// Rewrites an array's bytes, block by block, as lines of one element; returns 0, JSON_NO_ELEMENT or JSON_AFTER_ARRAY.
int64_t rm_json_array_to_lines(Span<uint8_t> data, JsonArray &array);

// Writes the values of a tape by node, and within one in the order of the tape: their places on the tape, kinds, and
// where they lie. places, found [nodes]: where each node's begin, moved on; a bit for each kind that it has.
int64_t rm_sort_json_values(Span<const JsonValue> tape, Span<int64_t> places, Span<int64_t> found, Span<int32_t> order,
                            Span<uint8_t> kinds, Span<int32_t> around, Span<int32_t> starts, Span<int32_t> sizes);
// Writes texts one after the other and their offsets, [n + 1]; returns the bytes written. Missing ones are empty. kinds:
// of JSON, whose escapes are taken out. They need not be UTF-8.
int64_t rm_join_texts(ByteSpan data, Span<const int32_t> starts, Span<const int32_t> sizes, ByteSpan kinds,
                      ByteSpan missing, Span<uint8_t> texts, Span<int64_t> offsets);

// csv.cpp

struct CsvDialect {
  int64_t delimiter, quote, is_doubled, escape, comment, trim;  // bytes, no line ends, 256 for none; the others: 1 or 0
  int64_t max_row_bytes;
  int64_t columns;                // 0 if only rows are wanted, not their fields
  int64_t is_ragged, is_lenient;  // rows with fewer fields, or that go on after a closing quote, are no bad ones
};
struct CsvScan {
  int64_t at, line;     // where a row starts, or a line to skip, and its physical line; then where the next row starts
  int64_t limit;        // the first byte where no row is to start
  int64_t is_final;     // the data ends with a row or the file
  int64_t is_skipping;  // it starts, and then ends, in a line to skip
  int64_t rows, bad, blanks;  // results: rows, bad ones, blank lines that are no rows
  // Of the rows: fields in quotes; rows that needed them, since their lines would be no rows without; rows across lines
  // of which each would be one, and the first of their lines.
  int64_t quoted_fields, needed, across, first_across;
};
struct CsvBadRow {
  int64_t ordinal, line, start;
  int64_t width;     // its fields, or CSV_TOO_LONG ...
  int64_t field;     // where the field starts that is wrong
  int64_t are_rows;  // 1 if the row's lines would be rows without quotes
};
// Widths of bad rows: too long, or with a quote never closed; with a field that goes on after its closing quote.
enum { CSV_TOO_LONG = -1, CSV_STRAY_QUOTE = -2 };
// Reads rows until the arrays are full, a row starts at the limit or later, or the data ends; unescapes fields in
// place. starts, infos: [columns, n], of fields as below. rows: [3, n], fields, ordinal and line.
int64_t rm_scan_csv(Span<uint8_t> data, const CsvDialect &dialect, CsvScan &scan, Span<int32_t> starts,
                    Span<int32_t> infos, Span<int64_t> rows, Span<CsvBadRow> bad);

// fields.cpp: columns of text fields. A field is data[start, start + length); an info is its length and flags. The
// texts that stand for a null lie one after the other in tokens, token i ends at token_ends[i]. valid and fault come in
// as 1 and 0 in every row: valid becomes 0 where there is a null, fault says why a field has no value.

enum { FIELD_LENGTH = 0x0FFFFFFF, FIELD_QUOTED = 0x20000000 };  // what an info holds
// What a text is by itself, as bits that are joined over a column. A timestamp has the unit that it needs at least.
// NAIVE: it has no time zone; BEYOND_NANOS: it is before 1677-09-21 or after 2262-04-11.
enum {
  BOOL_CLASS = 1, INT64_CLASS = 2, FLOAT32_CLASS = 4, SECONDS_CLASS = 8, MILLIS_CLASS = 16, MICROS_CLASS = 32,
  NANOS_CLASS = 64, NAIVE_CLASS = 128, AWARE_CLASS = 256, BEYOND_NANOS_CLASS = 512, TEXT_CLASS = 1024
};
// What fault says of a field. UNDECIDED: Python's float() must tell.
enum {
  FITS, WRONG_TYPE, BEYOND_RANGE, INEXACT, UNDECIDED, NO_ZONE, HAS_ZONE, TOO_FINE, FIELD_NOT_UTF8, NO_CLASS, NO_VALUE
};
// What a number loses: decimals and whole ones that float32 changes, those that int64 or float32 can't hold.
enum { NO_LOSS, INEXACT_DECIMAL, INEXACT_INTEGER, BEYOND_INT64, BEYOND_FLOAT32 };
enum { CLASS_FIELDS, NUMBER_FIELDS, INTEGER_FIELDS, FLOAT_FIELDS, BOOLEAN_FIELDS, TIMESTAMP_FIELDS };
// What the values of a column are.
struct FieldType {
  int64_t kind;
  int64_t low;    // integers, however they are written (5, 5.0, 5e0): of [low, high]
  uint64_t high;
  double beyond;  // floats: from here on they are out of range
  int64_t bits;   // and a whole number needs no more significant bits
  int64_t nanos_per_unit, is_aware;  // timestamps: units since 1970, with a time zone or without
};
// Of a column that is inferred, added up over calls. soft_nulls: quoted null tokens, which are among the values too.
struct ColumnCounts {
  int64_t classes, values, soft_nulls, inexact_decimals, inexact_integers, beyond_int64, overflows;
};
// Writes the values of fields, as int64 (CLASS_FIELDS: what each is), double or uint8 (booleans), 0 where there is none.
// Without fault it infers: it counts what fields are, and each null token in null_counts, up to the first field that is
// no plain value of the type, of a class that is inferred as such. CLASS_FIELDS and NUMBER_FIELDS are all; of the former
// a column that is known as text is not classified. Returns how many fields it took. values: or None; null_counts with
// fault, valid without it or without tokens: or None.
int64_t rm_read_fields(ByteSpan data, Span<const int32_t> starts, Span<const int32_t> infos, ByteSpan tokens,
                       IntSpan token_ends, const FieldType &type, Span<uint8_t> values, Span<uint8_t> valid,
                       Span<uint8_t> fault, ColumnCounts &counts, Span<int64_t> null_counts);

// Writes of each text data[starts[i] : stops[i]] the place in the data of the first byte that begins no character of
// UTF-8, or -1; gives how many have such a byte.
int64_t rm_find_bad_lines(ByteSpan data, IntSpan starts, IntSpan stops, Span<int64_t> places);

// images.cpp

// Where the walk through a JPEG stopped; JPEG_OTHER: it does not begin as one.
enum {
  JPEG_GOOD, JPEG_CUT, JPEG_NO_END, JPEG_LENGTH, JPEG_TWICE, JPEG_NO_FRAME, JPEG_NO_SCAN, JPEG_FRAME, JPEG_OTHER
};
struct JpegFacts {
  int64_t code, place;                                    // why the walk stopped, and at which marker
  int64_t height, width, components, bits, marker, scans;  // of the frame header, whose marker it is; scans so far
};
// Walks through images that stand one after the other.
int64_t rm_walk_jpegs(ByteSpan data, IntSpan ends, Span<JpegFacts> facts);

// Resizes lines of so many numbers, each a stride after the one before, to bytes, rounded, or to floats, as number *
// factor - offset: the other is None. factor, offset: of each number of a line wanted. rows, row_weights [most, rows
// wanted], columns, column_weights [most, numbers of a line wanted]: of which source rows and numbers each one wanted is
// the sum; without antialias the 2 that it lies between, and one weight, of the second. room: for 3 lines wanted and a
// source line.
int64_t rm_resize(ByteSpan pixels, int64_t stride, int64_t numbers, int64_t antialias, Span<const uint32_t> rows,
                  Span<const float> row_weights, Span<const uint32_t> columns, Span<const float> column_weights,
                  Span<const float> factor, Span<const float> offset, Span<float> room, Span<uint8_t> bytes,
                  Span<float> floats);

// statistics.cpp

enum { MOST_COUNTED = 65536, EXPONENTS = 2046 };  // values of a call; exponents that finite values have
struct ExponentSum {  // of the integers whose multiples of 2^(exponent - 1074) are values, and of their squares
  int64_t exponent, sum_high;
  uint64_t sum_low, squares_high, squares_low;
};
// Adds up finite values by their exponents; gives how many sums there are.
int64_t rm_sum_floats(Span<const double> values, Span<ExponentSum> sums);
// Hashes of which none is 0.
int64_t rm_hash_texts(ByteSpan data, IntSpan starts, IntSpan ends, Span<uint64_t> out);
// Counts hashes from the first one on that are at most the threshold, in a table with open addresses; places: where a
// hash that was not in the table stands. Gives used << 32 | how many were looked at: all, or as many as three quarters
// of the slots have room for.
int64_t rm_count_hashes(Span<const uint64_t> hashes, int64_t first, uint64_t threshold, int64_t used,
                        Span<uint64_t> slots, Span<int64_t> counts, Span<int32_t> places);

}  // extern "C"
#pragma GCC visibility pop

}  // namespace rm
