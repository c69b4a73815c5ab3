// The interface of librecordmill: every function that Python calls, declared once.
//
// The text of this header is compiled into the library. `recordmill.base.library` reads it there and makes a Python
// function of each declaration, a class of each struct and an `enum.IntEnum` of each enum. For this purpose, declarations
// use only a small part of C++:
//
//   - Functions are called rm_NAME and return int64_t, uint64_t, double or void.
//   - Span<T> is an array. Python passes a C-contiguous NumPy array of that dtype, or None if the array is optional.
//     A function writes only to spans of a type that is not const. For a Span of structs, Python passes an array with the
//     struct's dtype, or a two-dimensional array with a column per field.
//   - ByteSpan is Span<const uint8_t>, IntSpan is Span<const int64_t>.
//   - Span<const ByteSpan> is a sequence of arrays of any dtypes. The function sees their bytes.
//   - Structs hold numbers, enums and Spans, and are passed by reference. Python creates them with keyword arguments.
//   - Enums have the type int64_t. Bits that are combined are constants in a namespace.
//
// A function checks all sizes, offsets and indices that it gets before it touches memory. It returns BOUNDS if they do
// not fit together, and Python raises IndexError. This is always a bug of the caller, and never caused by the content of a
// file.
//
// In comments, `[n]` is the shape of an array, and `[columns, rows]` is a row-major matrix.
#pragma once

#include "common.h"

namespace rm {

constexpr int64_t BOUNDS = INT64_MIN;  // sizes, offsets or indices of the caller do not fit together

#pragma GCC visibility push(default)
extern "C" {

// ---- crc32c.cpp: checksums

enum class CrcMethod : int64_t {
  TABLE,        // works on every processor
  INSTRUCTION,  // needs the CRC32C instruction of the processor
  FOLDING       // needs AVX-512 and VPCLMULQDQ
};

// Returns the newest instruction set that this processor has: 0 for any processor of its family, 3 for x86-64-v3.
int64_t rm_machine_level();

// Returns the CRC32C of `data`.
//   crc: the CRC of the bytes before `data`, or 0 at the start.
//   method: the fastest method to use. A slower one is used if the processor lacks it.
int64_t rm_crc32c(ByteSpan data, int64_t crc, CrcMethod method);

// ---- frames.cpp: records in the form of TFRecord files

// Why a scan stopped.
enum class FrameCode : int64_t {
  GOOD,             // at the end of the data
  BAD_HEADER_CRC,   // the CRC of the length is wrong
  TOO_LONG,         // the length is above max_record_bytes
  SHORT_HEADER,     // the file ends inside a header
  SHORT_PAYLOAD,    // the file ends inside a payload or its CRC
  BAD_PAYLOAD_CRC,  // the CRC of the payload is wrong
  NEEDS_MORE        // the output is full, or the next frame needs more data
};

// Writes a frame for each payload, one after the other. Returns the number of bytes written.
//   offsets [n + 1]: payload i is data[offsets[i] : offsets[i + 1]].
//   out: receives the frames.
//   starts [n]: receives the offset of each frame in `out`.
//   lengths [n]: receives the length of each payload.
//   crcs [n]: receives the CRC32C of each payload, not masked.
int64_t rm_frame(ByteSpan data, IntSpan offsets, Span<uint8_t> out, Span<int64_t> starts, Span<int64_t> lengths,
                 Span<uint32_t> crcs);

// The state of a scan over frames, which the caller keeps between calls.
struct FrameScan {
  int64_t position;          // offset of the next header
  int64_t end;               // rm_hop_frames: offset of the end of the file, which may be after the end of the data
  int64_t max_record_bytes;  // longer payloads stop the scan with TOO_LONG
  int64_t is_final;          // 1 if the file ends with the data
  int64_t checks_payloads;   // 1 to check the CRC of each payload
  FrameCode code;            // result: why the scan stopped
};

// Finds frames from scan.position on, until the output is full or the scan stops. Moves scan.position and sets scan.code.
// Returns the number of frames.
//   starts, lengths [n]: receive the offset of each frame and the length of its payload.
//   crcs [n]: receives the CRC32C of each payload; 0 if payloads are not checked.
int64_t rm_scan_frames(ByteSpan data, FrameScan &scan, Span<int64_t> starts, Span<int64_t> lengths,
                       Span<uint32_t> crcs);

// Hops from header to header without reading payloads. Returns the number of frames.
//   data: a window of the file. It may begin with the footer of the frame before scan.position.
//   starts [n]: receives the offset of each frame.
//   digest [1]: is continued with the length of each record and with each footer that is in the data. Two files with
//     the same digest contain the same records, unless they were made to collide on purpose.
int64_t rm_hop_frames(ByteSpan data, FrameScan &scan, Span<int64_t> starts, Span<uint64_t> digest);

// Returns the offset of the next frame with a correct header, at `position` or later; data.size if there is none.
//   is_complete: 1 if the frame must end inside the data.
int64_t rm_next_frame(ByteSpan data, int64_t position, int64_t max_record_bytes, int64_t is_complete);

// Copies spans of bytes to their places in `out`: blocks[block_ids[i]][starts[i] : starts[i] + sizes[i]] to
// out[targets[i] :]. Returns the number of spans copied, which is less than n if a span is not inside its block.
//   block_ids [n]: optional if there is one block.
//   starts, sizes, targets [n].
int64_t rm_copy_spans(Span<const ByteSpan> blocks, Span<const int32_t> block_ids, IntSpan starts, IntSpan sizes,
                      IntSpan targets, Span<uint8_t> out);

// Reads spans of files to their places in `out`: file[starts[i] : starts[i] + sizes[i]] to out[targets[i] :]. Spans that
// are close to each other, and in ascending order, are read together. Returns the number of spans read, which is less
// than n if a file ends before a span, can't be read, or is not a regular file.
//   paths: the path of each file, with a 0 after it.
//   edges [files + 1]: file f has spans [edges[f], edges[f + 1]).
//   starts, sizes, targets [n].
int64_t rm_read_spans(ByteSpan paths, IntSpan edges, IntSpan starts, IntSpan sizes, IntSpan targets, Span<uint8_t> out);

// ---- order.cpp: hashes, permutations, packing

// Writes the SipHash-2-4 of each span data[starts[i] : starts[i] + lengths[i]].
//   key0, key1 [keys]: the two halves of each key.
//   key_ids [n]: span i is hashed with key key_ids[i] - first_key. Optional; without it key 0 is used.
//   hashes [n]: receives the hashes.
int64_t rm_hash_spans(Span<const uint64_t> key0, Span<const uint64_t> key1, Span<const uint32_t> key_ids,
                      int64_t first_key, ByteSpan data, IntSpan starts, IntSpan lengths, Span<uint64_t> hashes);

// Mixes each word by the finaliser of SplitMix64, which is a bijection.
//   out [n]: receives the mixed words.
int64_t rm_mix_words(Span<const uint64_t> words, Span<uint64_t> out);

// Finds the range that contains each number.
//   edges [ranges + 1]: range r is [edges[r], edges[r + 1]).
//   range_ids [n]: receives the ranges.
int64_t rm_find_ranges(IntSpan numbers, IntSpan edges, Span<int64_t> range_ids);

// Permutes numbers inside ranges. Each range has a pseudorandom permutation of its own.
//   edges [ranges + 1]: range r is [edges[r], edges[r + 1]).
//   range_ids [n]: the range that each number is in.
//   out [n]: receives the permuted numbers.
int64_t rm_permute(IntSpan numbers, IntSpan range_ids, IntSpan edges, uint64_t key, Span<int64_t> out);

// Packs records into rows: each goes to the first row of the current step with room for it. Returns the number of full
// steps.
//   lengths [features, records]: the length of each feature in each record.
//   limits [features]: the total length that a row holds.
//   free [rows, features]: scratch.
//   row_ids [records]: receives the row of each record, counted over all steps.
//   step_ends [records]: receives, for each full step, the number of the first record after it.
int64_t rm_pack_rows(IntSpan lengths, IntSpan limits, Span<int64_t> free, Span<int64_t> row_ids,
                     Span<int64_t> step_ends);

// ---- examples.cpp: columns to records

// How the values of a column are written.
enum class EntryKind : int64_t {
  ONE_INT,        // one int64 per record
  INTS,           // a list of int64 per record
  CONSTANT_SIZE,  // data with the same number of bytes in each record, such as one float
  FLOATS,         // a list of float32 per record
  TEXTS,          // a list of byte strings per record
  MESSAGE         // a serialized Feature or FeatureList per record
};

// A column: one entry of the map in tf.train.Example, for all records. Its arrays are five elements of `parts`; those
// that are not needed are empty:
//   0 valid, uint8 [rows]: 0 for records without the entry.
//   1 splits, int64 [rows + 1]: the values of row i are values[splits[i] : splits[i + 1]].
//   2 values: int64, float32 or uint8.
//   3 value_splits, int64 [values + 1]: for TEXTS and MESSAGE the bounds of each byte string in `values`.
//   4 heads, uint8: for ONE_INT 11 heads, of which head v comes before a varint of v bytes. For CONSTANT_SIZE all bytes
//     before the data. Otherwise the key, `0A name_length name 12`. Each head is padded to a multiple of 16 bytes.
struct ExampleColumn {
  EntryKind kind;
  int64_t length;      // CONSTANT_SIZE: bytes per record. Otherwise values per record, if there are no splits
  int64_t head_bytes;  // bytes of a head without its padding. 0: a step, a lone Feature that becomes field 1 of its record
};

// Computes the layout of the frames. Returns the number of bytes of all frames.
//   columns: in the order of their names.
//   parts [5 * columns]: see ExampleColumn.
//   list_sizes [columns, rows]: receives the size of each list, which rm_write_examples needs.
//   entry_sizes [rows]: receives the size of all entries of each record.
//   starts, lengths [rows]: receive the offset of each frame and the length of its payload.
int64_t rm_size_examples(Span<const ExampleColumn> columns, Span<const ByteSpan> parts, Span<int64_t> list_sizes,
                         Span<int64_t> entry_sizes, Span<int64_t> starts, Span<int64_t> lengths);

// Writes the frames. Returns the number of records.
//   list_sizes, entry_sizes, starts, lengths: as rm_size_examples has written them.
//   out: receives the frames. Must have 16 bytes more than they take, because heads are copied 16 bytes at a time.
//   crcs [rows]: receives the CRC32C of each payload, not masked.
int64_t rm_write_examples(Span<const ExampleColumn> columns, Span<const ByteSpan> parts, IntSpan list_sizes,
                          IntSpan entry_sizes, IntSpan starts, IntSpan lengths, Span<uint8_t> out, Span<uint32_t> crcs);

// ---- decode.cpp: records to columns

// How a column is read. The first three have exactly one value in each record, which the first pass reads. For the others
// the first pass finds the list, and a second pass reads it.
enum class CellMode : int64_t { ONE_INT64, ONE_FLOAT, ONE_BYTES, INT64_LIST, FLOAT_LIST, BYTES_LIST, STEPS };

// The result of reading a record. Python finds the statuses from OUT_OF_RANGE to BAD_ROW_LENGTHS in its second pass.
enum class RecordStatus : int64_t {
  GOOD,
  PAST_END = 1,   // a field reaches past the end of its message
  LONG_VARINT,    // a varint has more than 10 bytes
  UNUSUAL = 20,   // not written in the plain form; only protobuf can decide whether it is valid
  WRONG_KIND,     // another kind of list than the schema's
  WRONG_COUNT,    // another number of values than the schema's
  MISSING_VALUE,  // a required feature is missing
  OUT_OF_RANGE,
  NOT_UTF8,
  WRONG_SIZE,
  BAD_ROW_LENGTHS,
  UNREAD = 255
};

// What to do with features that have no column.
enum class OtherFeatures : int64_t {
  SKIP,   // do not read their values
  CHECK,  // check that they are in the plain form
  REFUSE  // the record is UNUSUAL
};

struct CellColumn {
  CellMode mode;
  int64_t first;        // index of its first cell in `ints`, `floats`, or `starts` and `sizes`, depending on the mode
  int64_t is_required;  // 1 if each record must have a value
  int64_t last_row;     // scratch: the last row that had the column. The caller sets it to -1
  int64_t null_count;   // is increased by the number of cells that became null
};

// The cells that the first pass fills, and what it finds out about each record.
struct RecordCells {
  Span<CellColumn> columns;
  Span<int64_t> ints;       // [rows] for each ONE_INT64 column: the values
  Span<uint32_t> floats;    // [rows] for each ONE_FLOAT column: the bits of the values
  Span<int64_t> starts;     // [rows] for each other column: the offset of its values in the data; 0 for a null
  Span<int64_t> sizes;      // their number of bytes; 0 for a null
  Span<uint8_t> valid;      // [columns, ceil(rows / 8)]: validity bitmaps of Arrow. The caller sets all bits
  Span<uint8_t> status;     // [rows]: RecordStatus. Only rows that are UNREAD are read
  Span<int64_t> culprits;   // [rows]: the column that caused the status, or -1
};

// Reads records into cells: the first pass of the decoder. Returns the number of records that are not GOOD afterwards.
//   starts, lengths [rows]: the bytes of each record in `data`.
//   map_count: 1 for Example, 2 for SequenceExample, 0 if each record is the Feature of the only column.
//   table: a table of names (rm_make_names) with the names of the columns in slots 1, 2, ... Other names are added.
int64_t rm_locate_features(ByteSpan data, IntSpan starts, IntSpan lengths, int64_t map_count, OtherFeatures others,
                           Span<int64_t> table, const RecordCells &cells);

// A table of names is an int64 array with three parts: this head, the slots, the bytes of the names.
struct NamesHead {
  int64_t slots;            // number of slots. Slot 0 represents the beginning of a record
  int64_t text_bytes;       // room for the bytes of names
  int64_t used_slots;
  int64_t used_text_bytes;
};

// A name. Names with equal bytes and different parts are different names.
struct NameSlot {
  int64_t text;    // offset of its first byte in the bytes of the names
  int64_t size;    // bytes
  int64_t part;    // 1 for features, 2 for feature lists; for JSON the node of the object around the key
  int64_t next;    // the slot predicted to follow it, since it did so last time
  int64_t newest;  // head of the hash chain with this slot's number: the last slot added to it
  int64_t before;  // the slot before this one in its own hash chain
  uint64_t head;   // the first 8 bytes of the name, padded with zeros
  uint64_t tail;   // the last 8 bytes of the name; equal to `head` for short names
};

// Makes a table of names. Returns the number of int64 that it takes.
//   table: receives the names. If None, only the size is computed.
//   max_names, text_bytes: room for names and for their bytes. Functions that add names stop when it is used up.
//   names, parts [n]: the first names, which get the slots 1, 2, ...
int64_t rm_make_names(Span<int64_t> table, int64_t max_names, int64_t text_bytes, Span<const ByteSpan> names,
                      IntSpan parts);

constexpr int64_t VARINT_ROOM = 8;  // values that rm_read_varints may write after the last one

// Reads packed lists of varints, in two calls. Returns the number of varints in all lists.
//   starts, sizes [lists]: the bytes of each list.
//   offsets [lists + 1]: the index of each list's first value. The first call writes them, the second one reads them.
//   values: None in the first call. In the second one it receives the values, and needs VARINT_ROOM more elements.
//   statuses [lists]: receives PAST_END in the first call for a list that is cut off, which then has no values. Receives
//     LONG_VARINT in the second call; the value that is too long and all after it are 0.
int64_t rm_read_varints(ByteSpan data, IntSpan starts, IntSpan sizes, Span<int64_t> offsets, Span<int64_t> values,
                        Span<uint8_t> statuses);

// Finds the length-delimited fields of lists: the values of a BytesList, the steps of a FeatureList. Returns their number.
//   starts, sizes [lists]: the bytes of each list.
//   offsets [lists + 1]: receives the index of each list's first field.
//   field_starts, field_sizes: receive the bytes of each field's content. If None, the fields are only counted.
int64_t rm_find_fields(ByteSpan data, IntSpan starts, IntSpan sizes, Span<int64_t> offsets, Span<int64_t> field_starts,
                       Span<int64_t> field_sizes);

// Copies values one after the other. Returns the number of bytes.
//   starts, sizes [n]: the bytes of each value.
//   are_lists: 1 if each is a list of length-delimited fields, whose contents are the values.
//   ends [values + 1]: receives the end of each value in `values`, after a first 0.
//   values: receives the bytes.
int64_t rm_copy_values(ByteSpan data, IntSpan starts, IntSpan sizes, int64_t are_lists, Span<int64_t> ends,
                       Span<uint8_t> values);

// ---- census.cpp: schemas of records

// Counts of one feature name. `first_...` is the number of the first record in which it was seen.
struct NameCounts {
  int64_t records;
  int64_t values;  // of all lists together
  int64_t min_values, max_values, first_min_values, first_max_values;  // values of one list
  int64_t last_row;  // scratch. The caller sets it to -1
  int64_t bytes_lists, float_lists, int64_lists;
  int64_t first_bytes_list, first_float_list, first_int64_list;
  int64_t bytes_values, texts;  // texts: bytes values that are UTF-8 without control characters
  int64_t min_bytes, max_bytes;  // bytes of one value
  int64_t min_int, max_int, sum_int;
};

// Counts what records contain. Returns the number of records that are not GOOD afterwards, or -1 if there is no room for
// another name.
//   starts, lengths [rows]: the bytes of each record.
//   first_record: the number of the first record, for NameCounts.
//   table: a table of names. New names are added.
//   counts [slots]: the counts of the records are added to it.
//   status [rows]: RecordStatus. Rows that are UNREAD are counted if they are in the plain form, and UNUSUAL otherwise.
//   maps [rows]: receives which maps each record has: bit 0 for features, bit 1 for feature lists.
int64_t rm_count_names(ByteSpan data, IntSpan starts, IntSpan lengths, int64_t first_record, Span<int64_t> table,
                       Span<NameCounts> counts, Span<uint8_t> status, Span<int64_t> maps);

// ---- json.cpp: JSON Lines

enum class JsonKind : int64_t {
  NULL_VALUE, FALSE_VALUE, TRUE_VALUE, INT, FLOAT, STRING,
  ESCAPED_STRING,  // a string with a backslash
  OBJECT, ARRAY
};
constexpr int64_t JSON_KINDS = 9;

// Why a line is not a record.
enum class JsonFault : int64_t {
  NONE, SYNTAX, NOT_AN_OBJECT, TOO_DEEP, DUPLICATE_KEY, TRAILING_DATA, CONTROL_CHARACTER, UNKNOWN_ESCAPE, LONE_SURROGATE,
  NOT_UTF8, BAD_NUMBER, CUT_OFF, TOO_MANY_VALUES,
  NO_ROOM  // never returned: an array of the caller is full, and the line will be read again
};

// Why rm_scan_json returned.
enum class JsonScanEnd : int64_t {
  DONE,       // at the end of the data, or `record_lines` or `errors` is full
  TAPE_FULL,  // the next line has more values than the tape has room for
  NAMES_FULL  // the table of names has no room for a key
};

enum class JsonArrayFault : int64_t { NONE, NO_ELEMENT, DATA_AFTER_ARRAY };

constexpr int64_t JSON_MAX_DEPTH = 60;          // levels of nesting; deeper records are TOO_DEEP
constexpr int64_t JSON_UNREADABLE_BYTE = 0xFF;  // replaces the first byte of a line that is not UTF-8

// A value on a tape, which holds the values of many records in the order of the text.
struct JsonValue {
  int32_t head;         // node * 16 + JsonKind
  int32_t parent;       // ordinal of the object or array around it among the values of its node; at the top, of the record
  int32_t start, stop;  // its text; of a string without the quotes
};

// A node is a path in records, such as `a.b`. Node 0 is the record itself. The caller sets all fields of node 0 to -1.
struct JsonNode {
  int32_t element;       // the node of an array's elements, or -1
  int32_t first_member;  // the member that came first in this object last time, or -1
  int32_t next_member;   // the member that came after this one last time, or -1
  int32_t count;         // values on the tape
  int32_t last_parent;   // `parent` of the last of them; finds duplicate keys
  int32_t is_plain;      // 1 if the key needs no escapes
};

struct JsonError {
  int64_t line;        // counted from the first line of the call
  JsonFault fault;
  int64_t position;    // offset of the fault
  int64_t line_start;  // offset of the line
};

struct JsonScan {
  int64_t position;         // offset of the next line; is moved on
  int64_t max_line_values;  // lines with more values are TOO_MANY_VALUES
  int64_t lines, records, errors, values;  // results of this call
  int64_t nodes;            // nodes in use
};

// Reads lines until the data ends or an array is full. Returns a JsonScanEnd.
//   table: a table of names. Slot i is node i. The part of a key is the node of the object around it. The elements of array
//     a have the empty name and part -1 - a.
//   nodes [slots].
//   tape: receives the values.
//   record_lines, record_values: receive the line of each record, and the index of its first value on the tape.
//   errors: receives the lines that are not records.
int64_t rm_scan_json(ByteSpan data, Span<int64_t> table, Span<JsonNode> nodes, Span<JsonValue> tape,
                     Span<int32_t> record_lines, Span<int32_t> record_values, Span<JsonError> errors, JsonScan &scan);

// The state of rm_json_array_to_lines between blocks. All fields are 0 at the start.
struct JsonArray {
  int64_t depth;             // of open brackets; -1 after the end of the array
  int64_t in_string, is_escaped;
  int64_t element_has_begun;
  int64_t elements;
  int64_t stop;              // offset after the end of the array in its last block
};

// Rewrites a block of a file that is one JSON array in place, as lines of one element. Returns a JsonArrayFault.
int64_t rm_json_array_to_lines(Span<uint8_t> data, JsonArray &array);

// The state of rm_find_json_member between blocks. All fields are 0 at the start.
struct JsonMember {
  int64_t depth;  // of open brackets; -1 after the end of the object
  int64_t in_string, is_escaped;
  int64_t in_key;         // the string is a key of the object
  int64_t expects_key;    // the next string of the object is a key
  int64_t expects_value;  // the next byte of the object begins a value
  int64_t matched;        // bytes of the key that equal the name; -1 after a difference
  int64_t has_name;       // the last key equals the name
};

// Finds the value of a member in a JSON object that is read in blocks. Keys are compared byte by byte, so a key with
// escapes is never found. Returns the offset of the first byte of the value from `start` on, data.size if it is not in
// this block, or -1 if the text is not an object.
int64_t rm_find_json_member(ByteSpan data, int64_t start, ByteSpan name, JsonMember &member);

// Groups the values of a tape by node, in the order of the tape. The output arrays have an element per value.
//   positions [nodes]: the index of each node's first value in the output; is moved on.
//   kind_bits [nodes]: receives a bit for each JsonKind that a node has.
//   order: receives the index of each value on the tape.
//   kinds, parents, starts, sizes: receive the fields of the values.
int64_t rm_sort_json_values(Span<const JsonValue> tape, Span<int64_t> positions, Span<int64_t> kind_bits,
                            Span<int32_t> order, Span<uint8_t> kinds, Span<int32_t> parents, Span<int32_t> starts,
                            Span<int32_t> sizes);

// Copies texts one after the other. Returns the number of bytes. Does not check that they are UTF-8.
//   starts, sizes [n]: the bytes of each text.
//   kinds [n]: JsonKind; the escapes of an ESCAPED_STRING are resolved. Optional.
//   is_missing [n]: 1 for texts that become empty. Optional.
//   texts: receives the bytes.
//   offsets [n + 1]: receives the bounds of each text.
int64_t rm_join_texts(ByteSpan data, Span<const int32_t> starts, Span<const int32_t> sizes, ByteSpan kinds,
                      ByteSpan is_missing, Span<uint8_t> texts, Span<int64_t> offsets);

// ---- csv.cpp: rows and fields of CSV

// The dialect of a file. Bytes are 256 if they are not used, and never a line end; flags are 0 or 1.
struct CsvDialect {
  int64_t delimiter, quote;
  int64_t is_doubled;  // two quotes inside quotes are one
  int64_t escape, comment;
  int64_t trims;       // blanks around fields are dropped
  int64_t max_row_bytes;
  int64_t columns;     // 0 to find rows only, without their fields
  int64_t is_ragged;   // rows with fewer fields are good
  int64_t is_lenient;  // fields that continue after their closing quote are good
};

// The state of a scan, which the caller keeps between calls, and the results of one call.
struct CsvScan {
  int64_t position;     // offset where the next row, or a line to skip, starts
  int64_t line;         // its line number
  int64_t limit;        // no row starts at this offset or later
  int64_t is_final;     // 1 if the data ends with a row or the file
  int64_t is_skipping;  // 1 if `position` is inside a line to skip
  int64_t rows, bad_rows, blank_lines;  // blank lines that are not rows
  int64_t quoted_fields;
  int64_t rows_needing_quotes;  // rows with lines that would not be rows if quotes were text
  int64_t rows_across_lines;    // rows of several lines, each of which would be a row if quotes were text
  int64_t first_across_line;    // the first line of the first of them
};

// Why a row is bad, in place of its number of fields.
enum class CsvRowFault : int64_t {
  TOO_LONG = -1,    // longer than max_row_bytes, or with a quote that is never closed
  STRAY_QUOTE = -2  // a field continues after its closing quote
};

struct CsvBadRow {
  int64_t ordinal;             // among all rows of the call
  int64_t line, start;
  int64_t width;               // number of fields, or a CsvRowFault
  int64_t field_start;         // offset of the wrong field; of the row if no single field is wrong
  int64_t is_good_as_text;     // 1 if the lines of the row would be rows if quotes were text
};

// Reads rows until an array is full, the limit is reached, or the data ends. Returns 0.
//   data: fields with escapes or doubled quotes are rewritten in place.
//   starts, infos [columns, n]: receive the fields, see fields.cpp.
//   rows [3, n]: receives the number of fields, the ordinal among all rows, and the line of each row.
//   bad: receives the bad rows.
int64_t rm_scan_csv(Span<uint8_t> data, const CsvDialect &dialect, CsvScan &scan, Span<int32_t> starts,
                    Span<int32_t> infos, Span<int64_t> rows, Span<CsvBadRow> bad);

// ---- fields.cpp: text fields to values

constexpr int64_t FIELD_LENGTH_MASK = 0x0FFFFFFF;  // bits of an info that hold the length of the field
constexpr int64_t FIELD_QUOTED_BIT = 0x20000000;   // the field was quoted

// A column of text fields.
struct TextFields {
  ByteSpan data;
  Span<const int32_t> starts;  // [rows]: the offset of each field
  Span<const int32_t> infos;   // [rows]: the length of each field and FIELD_QUOTED_BIT
  ByteSpan tokens;             // the texts that mean null, one after the other
  IntSpan token_ends;          // the end of each token in `tokens`
};

// The types that a text can have, as bits. The bits of all fields of a column are combined.
namespace TextClass {
enum : int64_t {
  BOOL = 1,
  INT64 = 2,
  FLOAT32 = 4,
  SECONDS = 8, MILLIS = 16, MICROS = 32, NANOS = 64,  // a timestamp; the coarsest unit that holds it
  NAIVE = 128,         // a timestamp without a time zone
  AWARE = 256,         // a timestamp with a time zone
  BEYOND_NANOS = 512,  // a timestamp before 1677-09-21 or after 2262-04-11, which int64 nanoseconds cannot hold
  TEXT = 1024
};
}

// Why a field has no value.
enum class FieldFault : int64_t {
  NONE,
  WRONG_TYPE,
  OUT_OF_RANGE,
  INEXACT,    // a whole number that the float type cannot hold
  UNDECIDED,  // a number that Python's float() must round: it has more than 19 digits
  NO_ZONE, HAS_ZONE,
  TOO_FINE,   // a timestamp finer than the unit of the column
  NOT_UTF8,
  NOT_A_CLASS,
  MISSING     // null, but the column requires a value
};

// The loss if a number gets the inferred type of its column.
enum class NumberLoss : int64_t {
  NONE,
  INEXACT_DECIMAL,  // a decimal that float32 changes
  INEXACT_INTEGER,  // a whole number that float32 changes
  BEYOND_INT64,
  BEYOND_FLOAT32
};

enum class FieldKind : int64_t {
  CLASSES,    // int64: the TextClass of each field. Fields are not classified any more once the column is TEXT
  NUMBERS,    // as CLASSES, but all fields are classified
  INTEGERS,   // int64
  FLOATS,     // double
  BOOLEANS,   // uint8
  TIMESTAMPS  // int64
};

// The type of a column.
struct FieldType {
  FieldKind kind;
  int64_t low;            // INTEGERS: values are in [low, high], in any notation (5, 5.0, 5e0)
  uint64_t high;
  double overflow_limit;  // FLOATS: values of this magnitude or more are OUT_OF_RANGE
  // FLOATS: the significant bits of the column's type. Whole numbers that need more are INEXACT. A value that the type would
  // round in another way than the number becomes the neighbor that it rounds right.
  int64_t mantissa_bits;
  int64_t nanos_per_unit, is_aware;  // TIMESTAMPS: the unit since 1970, and 1 if there must be a time zone
};

// Counts of a column with a type that is being inferred, summed over calls.
struct ColumnCounts {
  int64_t classes;      // TextClass bits
  int64_t values;
  int64_t soft_nulls;   // quoted null tokens, which also count as values: they are text if the column is
  int64_t inexact_decimals, inexact_integers, beyond_int64, beyond_float32;
};

// Reads the fields of a column as values of a type. Returns the number of rows read. There are two ways to call it:
//   To convert, pass `fault`. All rows are read.
//   To infer, pass None for `fault`. Reading stops at the first field that is not an ordinary value of the type, and
//   the results are added to `counts` and `null_counts`.
//     values [rows]: receives the values; 0 for nulls and for faults. Optional.
//     valid [rows]: the caller sets it to 1. Becomes 0 for nulls. Needed to convert if there are tokens.
//     fault [rows]: the caller sets it to 0. Receives the FieldFault of each field.
//     null_counts [tokens]: is increased for each field that is an unquoted null token. Needed to infer.
int64_t rm_read_fields(const TextFields &fields, const FieldType &type, Span<uint8_t> values, Span<uint8_t> valid,
                       Span<uint8_t> fault, ColumnCounts &counts, Span<int64_t> null_counts);

// Finds texts that are not UTF-8. Returns their number.
//   starts, stops [n]: the bytes of each text.
//   positions [n]: receives the offset of the first byte that does not begin a UTF-8 character, or -1.
int64_t rm_find_bad_lines(ByteSpan data, IntSpan starts, IntSpan stops, Span<int64_t> positions);

// ---- images.cpp: JPEG structure, resizing

// Why the walk through the segments of a JPEG stopped.
enum class JpegCode : int64_t {
  GOOD,         // at the end-of-image marker
  CUT_OFF,      // a segment goes beyond the end of the file
  NO_END,       // there is no end-of-image marker
  BAD_LENGTH,   // a segment is shorter than its own length field
  REPEATED,     // a second start of image or frame header
  NO_FRAME,     // no frame header before the scan or the end
  NO_SCAN,
  BAD_FRAME,    // a frame header with an impossible size or length
  NOT_A_JPEG
};

struct JpegFacts {
  JpegCode code;
  int64_t position;                         // offset of the marker at which the walk stopped
  int64_t height, width, components, bits;  // of the frame header
  int64_t marker;                           // the marker of the frame header, which determines the encoding process
  int64_t scans;                            // scans before the walk stopped
};

// Walks through images that are stored one after the other. Returns 0.
//   ends [n]: the end of each image in `data`.
//   facts [n]: receives the result for each image.
int64_t rm_walk_jpegs(ByteSpan data, IntSpan ends, Span<JpegFacts> facts);

// Lines of numbers: pixels of an image, with the channels of a pixel next to each other. One of `pixels` and `deep_pixels`
// is None.
struct PixelLines {
  ByteSpan pixels;
  Span<const uint16_t> deep_pixels;
  int64_t stride;  // numbers from one line to the next
  int64_t width;   // numbers in a line
};

// How each output line, or number in a line, is computed from source lines or numbers.
//   With antialiasing: [taps, outputs], and output i is the sum of weights[t, i] * source[sources[t, i]].
//   Without: sources is [2, outputs], weights is [outputs]. Output i lies between two sources, and weights[i] is the share
//   of the second one.
struct ResizeTaps {
  Span<const uint32_t> sources;
  Span<const float> weights;
};

// The arrays that receive the output. One of `bytes` and `floats` is None.
struct ResizeOutput {
  Span<const float> factor, offset;  // [width]: floats are number * factor - offset
  Span<uint8_t> bytes;               // [height, width]: rounded half to even
  Span<float> floats;                // [height, width]
};

// Resizes lines of numbers bilinearly, with the results of TensorFlow's kernels. Returns 0.
//   scratch: 3 output lines and a source line.
int64_t rm_resize(const PixelLines &source, int64_t antialias, const ResizeTaps &rows, const ResizeTaps &columns,
                  const ResizeOutput &output, Span<float> scratch);

// ---- statistics.cpp: exact sums, hashes, counts

constexpr int64_t MAX_SUMMED_VALUES = 65536;  // values of one call of rm_sum_floats
constexpr int64_t FLOAT64_EXPONENTS = 2046;   // exponents of finite float64

// The sum of all values with one exponent, and of their squares, as 128-bit integers. A value is its integer mantissa
// times 2^(exponent - 1074).
struct ExponentSum {
  int64_t exponent;
  int64_t sum_high;
  uint64_t sum_low;
  uint64_t squares_high, squares_low;
};

// Adds up finite values without rounding. Returns the number of sums.
//   sums: receives an element for each exponent that occurs.
int64_t rm_sum_floats(Span<const double> values, Span<ExponentSum> sums);

// The numbers of rm_add_elements.
enum class ElementKind : int64_t { UINT8, INT64, FLOAT32, FLOAT64 };

// Numbers with 32 bits in each limb that are sums of values, and of their squares. An integer counts in units of 1, a float32
// in units of 2^-149 and a float64 in units of 2^-1074; their squares in the squares of these units. Limbs are added without
// carries, so that a limb overflows after 2^31 rows unless the caller carries before.
constexpr int64_t INT_LIMBS = 5;
constexpr int64_t INT_SQUARE_LIMBS = 7;
constexpr int64_t FLOAT32_LIMBS = 12;
constexpr int64_t FLOAT32_SQUARE_LIMBS = 21;
constexpr int64_t FLOAT64_LIMBS = 69;
constexpr int64_t FLOAT64_SQUARE_LIMBS = 135;

// Sums and limits of each element, over many rows. A row has one number for each element.
struct ElementSums {
  Span<int64_t> limbs;         // [limbs of the kind, elements], the lowest limb first: the sum of the values
  Span<int64_t> square_limbs;  // [square limbs of the kind, elements]: the sum of their squares
  Span<int64_t> finite;        // [elements]: number of values that are neither infinite nor NaN
  Span<double> minima;         // [elements]: the smallest finite value
  Span<double> maxima;         // [elements]: the largest finite value
};

// Adds each column of an array to the sums of its element, without rounding. Returns the number of rows.
//   values [rows, elements]: numbers of the kind. Infinite values and NaN are skipped.
int64_t rm_add_elements(ByteSpan values, ElementKind kind, const ElementSums &sums);

constexpr int64_t KEY_RANGES = 16384;  // ranges of keys, by their highest 14 bits

// Counts keys in bins. Returns the number of keys that have no bin.
//   dropped_bits [KEY_RANGES]: number of low bits that become 0 in each key of a range, below 64; empty if no bits are dropped
//   bins: different keys
//   counts [bins]: is increased
//   slots [2^k >= 2 bins]: scratch memory
//   new_keys [keys]: receives the keys that have no bin, in their order and without the dropped bits
int64_t rm_count_keys(Span<const uint64_t> keys, ByteSpan dropped_bits, Span<const uint64_t> bins, Span<int64_t> counts,
                      Span<int32_t> slots, Span<uint64_t> new_keys);

// Writes a 64-bit hash of each text data[starts[i] : ends[i]]. No hash is 0. Returns the number of texts.
int64_t rm_hash_texts(ByteSpan data, IntSpan starts, IntSpan ends, Span<uint64_t> hashes);

// Counts hashes in an open-addressing table. Returns used << 32 | next: the number of slots in use, and the first hash that
// was not counted because three quarters of the slots are full, or hashes.size.
//   first: the first hash to count.
//   threshold: greater hashes are ignored.
//   used: slots in use before the call.
//   slots [2^k]: the hashes, or 0.
//   counts [2^k]: is increased.
//   positions [2^k]: receives the index in `hashes` where a hash was first seen in this call.
int64_t rm_count_hashes(Span<const uint64_t> hashes, int64_t first, uint64_t threshold, int64_t used,
                        Span<uint64_t> slots, Span<int64_t> counts, Span<int32_t> positions);

}  // extern "C"
#pragma GCC visibility pop

}  // namespace rm
