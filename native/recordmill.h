/* The interface of librecordmill: every function that Python calls, declared once.
 *
 * Its text is compiled into the library. recordmill.base.native reads it there and makes a Python function of each
 * declaration, so declarations keep to a small part of C:
 *
 *   - Functions are called rm_NAME and return int64_t, uint64_t, double or void.
 *   - A pointer to numbers is followed by its length in elements, an int64_t of the same name with _size. Python passes
 *     both by one NumPy array of that type, or None for an array that is not wanted (NULL and 0). What a function writes
 *     to is not const.
 *   - Structs hold scalars only, and are passed by pointer: `struct_NAME` in Python.
 *   - rm_bytes is the exception: `const rm_bytes *NAME, int64_t NAME_size` is a sequence of arrays of any types in
 *     Python, of which the function sees the bytes.
 *   - Constants stand in an enum: Python has them under their names without RM_.
 *
 * A function checks its arguments against the lengths it is given before it touches memory, and returns RM_BOUNDS if
 * they do not fit; Python raises IndexError then. That is always a bug of the caller, never of a file.
 */
#ifndef RECORDMILL_H
#define RECORDMILL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RM_BOUNDS INT64_MIN /* a caller's lengths, offsets or indices do not fit together */

/* The bytes of an array. */
typedef struct {
  const uint8_t *data;
  int64_t size;
} rm_bytes;

/* library.cpp */

/* The instruction set that this build of the library may use: 0 the processor family's first, 3 x86-64-v3. */
int64_t rm_built_level(void);
/* The instruction set that this machine has, in the same numbers. */
int64_t rm_machine_level(void);

/* crc32c.cpp */

/* The CRC32C of data, going on from the CRC of what stood before it (0 at the start). */
int64_t rm_crc32c(const uint8_t *data, int64_t data_size, int64_t crc);
/* How a CRC is made; each needs more of the processor than the one before. */
enum { RM_CRC_TABLES, RM_CRC_INSTRUCTION, RM_CRC_FOLDING };
/* The CRC32C of data, made in a certain way: for tests. RM_BOUNDS where this processor has it not. */
int64_t rm_crc32c_by(int64_t way, const uint8_t *data, int64_t data_size);

/* frames.cpp */

/* What a scan stopped at; RM_MORE: nothing, it needs more room or bytes. */
enum {
  RM_GOOD,
  RM_HEADER_CRC,
  RM_FRAME_TOO_LONG,
  RM_SHORT_HEADER,
  RM_SHORT_PAYLOAD,
  RM_PAYLOAD_CRC,
  RM_MORE
};

/* Frames the payloads data[offsets[i] : offsets[i + 1]] contiguously; gives the bytes written to out.
 * offsets [n + 1]; starts, lengths, crcs [n]: where each frame begins in out, its payload's bytes and CRC32C. */
int64_t rm_frame(const uint8_t *data, int64_t data_size, const int64_t *offsets, int64_t offsets_size, uint8_t *out,
                 int64_t out_size, int64_t *starts, int64_t starts_size, int64_t *lengths, int64_t lengths_size,
                 uint32_t *crcs, int64_t crcs_size);

/* Writes header and footer around payloads that stand in their places already. starts, lengths, crcs [n]: as above. */
int64_t rm_close_frames(uint8_t *data, int64_t data_size, const int64_t *starts, int64_t starts_size,
                        const int64_t *lengths, int64_t lengths_size, uint32_t *crcs, int64_t crcs_size);

/* What is wrong with the header at byte `at` of data, with which the file ends if final: one of the codes above. */
int64_t rm_frame_fault(const uint8_t *data, int64_t data_size, int64_t at, int64_t max_record_bytes, int64_t final);

/* at: where the next frame begins. final: the file ends with data. check: payloads' CRCs, too; they are 0 otherwise.
 * code: what the scan stopped at. */
typedef struct {
  int64_t at, max_record_bytes, final, check, code;
} rm_frame_scan;

/* Finds the frames from scan.at on until starts, lengths and crcs [n] are full; gives how many, and moves scan.at. */
int64_t rm_scan_frames(const uint8_t *data, int64_t data_size, rm_frame_scan *scan, int64_t *starts,
                       int64_t starts_size, int64_t *lengths, int64_t lengths_size, uint32_t *crcs, int64_t crcs_size);

/* lead: bytes of data before the first header, of the footer before it. left: bytes from that header to the file's
 * end. at: where the next header stands, counted from the first one. code: as of a scan. */
typedef struct {
  int64_t lead, left, max_record_bytes, at, code;
} rm_frame_hop;

/* Goes from header to header in a window of a file; gives how many it found, and where in starts. digest [1]: goes on
 * with all lengths and payload CRCs. */
int64_t rm_hop_frames(const uint8_t *data, int64_t data_size, rm_frame_hop *hop, int64_t *starts, int64_t starts_size,
                      uint64_t *digest, int64_t digest_size);

/* The same digest goes on with the lengths and payload CRCs of frames in data, or with one such number. */
int64_t rm_digest_frames(const uint8_t *data, int64_t data_size, const int64_t *starts, int64_t starts_size,
                         const int64_t *lengths, int64_t lengths_size, uint64_t *digest, int64_t digest_size);
int64_t rm_digest_word(uint64_t *digest, int64_t digest_size, int64_t word);

/* Where the next frame whose header is right begins, from byte `at` on, and, if whole, fits data; else data's end. */
int64_t rm_next_frame(const uint8_t *data, int64_t data_size, int64_t at, int64_t max_record_bytes, int64_t whole);

/* Copies span i, sizes[i] bytes at starts[i] of blocks[which[i]], to out[targets[i] :]. which: NULL with one block.
 * Gives the number of the first span that does not lie in its block, how many there are if all do. */
int64_t rm_copy_spans(const rm_bytes *blocks, int64_t blocks_size, const int32_t *which, int64_t which_size,
                      const int64_t *starts, int64_t starts_size, const int64_t *sizes, int64_t sizes_size,
                      const int64_t *targets, int64_t targets_size, uint8_t *out, int64_t out_size);

/* The sum of mix64(key, CRC) over records, by which their sets are compared. keys, crcs [n] */
uint64_t rm_record_sum(const uint64_t *keys, int64_t keys_size, const uint32_t *crcs, int64_t crcs_size);

/* Reads the index entries at these places of data: of records, of a shard of count records and end bytes. Gives the
 * number of the first one that does not end where the next one begins, how many there are if all do. */
int64_t rm_locate_entries(const uint8_t *data, int64_t data_size, const int64_t *places, int64_t places_size,
                          const int64_t *records, int64_t records_size, int64_t count, int64_t end, int64_t *offsets,
                          int64_t offsets_size, int64_t *lengths, int64_t lengths_size);

/* Finds ascending records by going from header to header from marks, which hold the offset of every stride-th record.
 * shifts [n]: added to an offset it gives the place in data. gaps: first byte of each and the byte after it, in turn;
 * a length there is -1. Gives the number of the first record that is not there, how many there are if all are. */
int64_t rm_walk_frames(const uint8_t *data, int64_t data_size, const int64_t *marks, int64_t marks_size,
                       int64_t stride, const int64_t *records, int64_t records_size, const int64_t *shifts,
                       int64_t shifts_size, const int64_t *gaps, int64_t gaps_size, int64_t max_record_bytes,
                       int64_t *offsets, int64_t offsets_size, int64_t *lengths, int64_t lengths_size);

/* keys.cpp */

/* out[i] = SipHash-2-4 of positions[i] as 8 bytes, under (key0, key1)[which[i] - first]. */
int64_t rm_hash_positions(const uint64_t *key0, int64_t key0_size, const uint64_t *key1, int64_t key1_size,
                          const uint32_t *which, int64_t which_size, int64_t first, const int64_t *positions,
                          int64_t positions_size, uint64_t *out, int64_t out_size);
/* out[i] = SipHash-2-4 of data[starts[i] : starts[i] + lengths[i]] under (key0, key1). */
int64_t rm_hash_spans(uint64_t key0, uint64_t key1, const uint8_t *data, int64_t data_size, const int64_t *starts,
                      int64_t starts_size, const int64_t *lengths, int64_t lengths_size, uint64_t *out,
                      int64_t out_size);
/* Permutes each number within its stretch [edges[s], edges[s + 1]), which it lies in. stretches [n]: which one. */
int64_t rm_permute(const int64_t *numbers, int64_t numbers_size, const int64_t *stretches, int64_t stretches_size,
                   const int64_t *edges, int64_t edges_size, uint64_t key, int64_t *out, int64_t out_size);

/* A hash of an image, 4 words, is cut into so many portions; portion p has the bits p, p + RM_HASH_PORTIONS ... */
enum { RM_HASH_PORTIONS = 13 };
/* out[i] = a portion of hashes[i], its first bit the highest. */
int64_t rm_take_portions(const uint64_t *hashes, int64_t hashes_size, int64_t portion, int32_t *out, int64_t out_size);
/* row, near, at: where a search stands: the hash, the key among those near its own, the other hash. */
typedef struct {
  int64_t portion, most_bits, row, near, at;
} rm_pair_search;
/* Finds pairs of hashes that differ in at most most_bits bits, in the portion in at most 1, and in those before it in
 * more; gives how many, at most as many as there is room for, and moves the search. hashes, keys [n]: in the order of
 * the keys, their portions; starts [keys + 1]: where each key begins. */
int64_t rm_find_near_pairs(const uint64_t *hashes, int64_t hashes_size, const int32_t *keys, int64_t keys_size,
                           const int32_t *starts, int64_t starts_size, rm_pair_search *search, int64_t *one,
                           int64_t one_size, int64_t *other, int64_t other_size);

/* batches.cpp: a bitmap is blocks of 8 words; before [blocks + 1]: the bits before each block, and all of them. */

/* Writes before; returns its last number. */
int64_t rm_count_bits(const uint64_t *words, int64_t words_size, int64_t *before, int64_t before_size);
int64_t rm_set_bits(const int64_t *numbers, int64_t numbers_size, uint64_t *words, int64_t words_size);
/* How many bits are set before each of these; and which bit is set after so many others. */
int64_t rm_rank_bits(const int64_t *numbers, int64_t numbers_size, const uint64_t *words, int64_t words_size,
                     const int64_t *before, int64_t before_size, int64_t *out, int64_t out_size);
int64_t rm_select_bits(const int64_t *numbers, int64_t numbers_size, const uint64_t *words, int64_t words_size,
                       const int64_t *before, int64_t before_size, int64_t *out, int64_t out_size);
/* Copies rows edges[i] to edges[i + 1] of the array's items to out, cut or padded to lengths[i] items each. What out
 * holds is the padding. splits [rows + 1]: where each row begins; gives the bytes passed. */
int64_t rm_pad_rows(const rm_bytes *values, int64_t values_size, const int64_t *splits, int64_t splits_size,
                    const int64_t *edges, int64_t edges_size, const int64_t *lengths, int64_t lengths_size,
                    int64_t item_bytes, uint8_t *out, int64_t out_size);
/* Packs records into the first row of a step that has room for them. lengths [features, records]; limits [features]: of
 * a row; left [rows, features]: scratch. places [records]: the row of each, counted over all steps; ends: the record
 * after each step that is full, of which it gives the number. */
int64_t rm_pack_rows(const int64_t *lengths, int64_t lengths_size, const int64_t *limits, int64_t limits_size,
                     int64_t *left, int64_t left_size, int64_t *places, int64_t places_size, int64_t *ends,
                     int64_t ends_size);
/* Of each item of records bins[i] to bins[i + 1] of row i: which of the row's records it is of, from 1, and its place
 * in it. numbers, positions [rows, length] */
int64_t rm_number_items(const int64_t *splits, int64_t splits_size, const int64_t *bins, int64_t bins_size,
                        int64_t length, int32_t *numbers, int64_t numbers_size, int32_t *positions,
                        int64_t positions_size);

/* examples.cpp */

/* What a column of records is, and so how it is written. CONSTANT_SIZE: as many bytes in each record. MESSAGE: texts
 * that take the place of the whole Feature. */
enum { RM_ONE_INT, RM_INTS, RM_CONSTANT_SIZE, RM_FLOATS, RM_ONE_TEXT, RM_TEXTS, RM_MESSAGE };

/* An entry of tf.train.Example's map, in all records. length: of CONSTANT_SIZE the bytes in each record; else values,
 * where there are no splits. head_bytes: of CONSTANT_SIZE all before the data; else the key, `0A length name 12`, or
 * 0: the one column is a Feature alone, which becomes field 1 of the record.
 * Five arrays belong to it, empty where they are not wanted. valid: uint8 [rows], 0 where a record does not have it.
 * splits: int64 [rows + 1], the values of each row. values: int64, float32 or uint8. value_splits: int64, the bytes of
 * each text. heads: uint8, with room of 16 bytes each or a multiple: the key; of ONE_INT 11 heads, [v] before a varint
 * of v bytes. */
typedef struct {
  int64_t way, length, head_bytes;
} rm_example_column;

/* Computes the frames of records. columns: of the structs above, seen as numbers, in the order of their names. kept
 * [columns * rows]: is written for the next call. sizes, starts, lengths [rows]: of all entries, of the frame, of the
 * payload. Gives the bytes of all frames. */
int64_t rm_size_examples(const int64_t *columns, int64_t columns_size, const rm_bytes *parts, int64_t parts_size,
                         int64_t *kept, int64_t kept_size, int64_t *sizes, int64_t sizes_size, int64_t *starts,
                         int64_t starts_size, int64_t *lengths, int64_t lengths_size);
/* Writes them. out: has 16 bytes more than they take. crcs [rows]: of the payloads. */
int64_t rm_write_examples(const int64_t *columns, int64_t columns_size, const rm_bytes *parts, int64_t parts_size,
                          const int64_t *kept, int64_t kept_size, const int64_t *sizes, int64_t sizes_size,
                          const int64_t *starts, int64_t starts_size, const int64_t *lengths, int64_t lengths_size,
                          uint8_t *out, int64_t out_size, uint32_t *crcs, int64_t crcs_size);

/* utf8.h, lines.cpp */

/* The place of the first byte that begins no character of UTF-8; -1 if all do. */
int64_t rm_find_bad_utf8(const uint8_t *data, int64_t data_size);
/* The first place from `at` on where that byte stands; the data's length if there is none. */
int64_t rm_find_byte(const uint8_t *data, int64_t data_size, int64_t at, int64_t byte);
/* The place after the last line feed; 0 if there is none. */
int64_t rm_last_line_end(const uint8_t *data, int64_t data_size);
/* Where the first line from `at` on starts that has more bytes than that, line feed excluded; the data's length if
   there is none. */
int64_t rm_find_long_line(const uint8_t *data, int64_t data_size, int64_t at, int64_t most_bytes);

/* Lines, how many of them are ASCII white space or empty, and carriage returns. */
typedef struct {
  int64_t lines, blank, returns;
} rm_line_counts;

void rm_count_lines(const uint8_t *data, int64_t data_size, rm_line_counts *counts);
/* Writes where each line starts and stops, line feed or CRLF excluded; returns how many there are. */
int64_t rm_split_lines(const uint8_t *data, int64_t data_size, int64_t *starts, int64_t starts_size, int64_t *stops,
                       int64_t stops_size);
/* Of each text [start, stop), the place in the data of the first byte that is no UTF-8, or -1. */
int64_t rm_find_bad_lines(const uint8_t *data, int64_t data_size, const int64_t *starts, int64_t starts_size,
                          const int64_t *stops, int64_t stops_size, int64_t *places, int64_t places_size);
/* Of each text, 1 if it is ASCII white space or empty, else 0. */
int64_t rm_find_blank_lines(const uint8_t *data, int64_t data_size, const int64_t *starts, int64_t starts_size,
                            const int64_t *stops, int64_t stops_size, uint8_t *blank, int64_t blank_size);
/* Writes the texts one after the other and their offsets, [texts + 1] from 0 on; returns the bytes written. */
int64_t rm_join_lines(const uint8_t *data, int64_t data_size, const int64_t *starts, int64_t starts_size,
                      const int64_t *stops, int64_t stops_size, uint8_t *values, int64_t values_size, int64_t *offsets,
                      int64_t offsets_size);

/* json.cpp: a tape is int32_t [values, 4], see JsonValue in json.h; entries are indices of values on it. */

enum { /* kinds of value; a string with a backslash is ESCAPED */
  RM_JSON_NULL,
  RM_JSON_FALSE,
  RM_JSON_TRUE,
  RM_JSON_INT,
  RM_JSON_FLOAT,
  RM_JSON_STRING,
  RM_JSON_ESCAPED,
  RM_JSON_OBJECT,
  RM_JSON_ARRAY,
  RM_JSON_KINDS
};

enum { /* why a line is no record */
  RM_JSON_OK,
  RM_JSON_SYNTAX,
  RM_JSON_NOT_OBJECT,
  RM_JSON_DEEP,
  RM_JSON_DUPLICATE,
  RM_JSON_TRAILING,
  RM_JSON_CONTROL,
  RM_JSON_ESCAPE,
  RM_JSON_SURROGATE,
  RM_JSON_NOT_UTF8,
  RM_JSON_NUMBER,
  RM_JSON_CUT,
  RM_JSON_MANY,
  RM_JSON_FULL /* never seen by Python: something is full, and the line is read again */
};

enum { RM_JSON_DONE, RM_JSON_TAPE_FULL, RM_JSON_NODES_FULL, RM_JSON_KEYS_FULL }; /* what rm_scan_json has no room in */
enum { RM_JSON_NO_ELEMENT = 1, RM_JSON_AFTER_ARRAY }; /* what is wrong with a file that is one array */
enum { RM_JSON_MOST_DEPTH = 60 }; /* levels of nesting; records nested deeper are JSON_DEEP */
enum { RM_JSON_UNREADABLE = 0xFF }; /* starts a line, in place of its first byte, that is JSON_NOT_UTF8 */

/* A place in records. -1: none. element: of an array. first, next: the members that were met first in this object, and
   after this one, last time. count: its values on the tape. last: the ordinal of the object around the last of them.
   is_plain: whether the key needs no escape. Node 0 is the record itself, all -1 at first. */
typedef struct {
  int32_t parent, key_start, key_stop, element, first, next, count, last, is_plain;
} rm_json_node;

typedef struct {
  int64_t line, wrong, at, line_start;
} rm_json_error;

/* at: where in the data to go on. nodes, key_bytes: in use. most_values: in a line. The others are results, of this call
   alone. wanted_bytes: of keys, if these are full. */
typedef struct {
  int64_t at, nodes, key_bytes, most_values, line, records, errors, values, wanted_bytes;
} rm_json_scan;

/* Reads lines until the data ends, or records or errors are full, or something else is, which it returns. nodes, errors:
   of the structs above, seen as numbers. table: a power of two, at least twice the nodes. record_lines, record_values:
   of each record its line and its first value on the tape. */
int64_t rm_scan_json(const uint8_t *data, int64_t data_size, int32_t *nodes, int64_t nodes_size, uint8_t *keys,
                     int64_t keys_size, int32_t *table, int64_t table_size, int32_t *tape, int64_t tape_size,
                     int32_t *record_lines, int64_t record_lines_size, int32_t *record_values,
                     int64_t record_values_size, int64_t *errors, int64_t errors_size, rm_json_scan *scan);
/* Enters the nodes' keys into a table. */
int64_t rm_hash_json_keys(int32_t *nodes, int64_t nodes_size, int64_t count, uint8_t *keys, int64_t keys_size,
                          int32_t *table, int64_t table_size);
/* Writes the entries by node, and in the order of the tape within one. places: where each node's begin, moved on. */
int64_t rm_sort_json_values(const int32_t *tape, int64_t tape_size, int64_t *places, int64_t places_size,
                            int32_t *order, int64_t order_size);
/* Writes the entries' kinds and the ordinals of what is around them; returns a bit for each kind that there is. */
int64_t rm_look_at_json(const int32_t *tape, int64_t tape_size, const int32_t *entries, int64_t entries_size,
                        uint8_t *kinds, int64_t kinds_size, int64_t *around, int64_t around_size);
/* The most bytes that the texts of the entries can take, those that are missing excluded. */
int64_t rm_json_text_bytes(const int32_t *tape, int64_t tape_size, const int32_t *entries, int64_t entries_size,
                           const uint8_t *missing, int64_t missing_size);
/* Writes the texts one after the other, without escapes, and their offsets, [entries + 1] from 0 on; returns the bytes
   written. Missing ones are empty. */
int64_t rm_join_json_texts(const uint8_t *data, int64_t data_size, const int32_t *tape, int64_t tape_size,
                           const int32_t *entries, int64_t entries_size, const uint8_t *missing, int64_t missing_size,
                           uint8_t *texts, int64_t texts_size, int64_t *offsets, int64_t offsets_size);

/* Of a JSON array that is read block by block. depth: -1 after its end. is_filled: a value has begun. */
typedef struct {
  int64_t depth, in_string, is_escaped, is_filled, elements;
} rm_json_array;

/* Rewrites an array's bytes as lines, an element a line; returns 0, JSON_NO_ELEMENT or JSON_AFTER_ARRAY. */
int64_t rm_json_array_to_lines(uint8_t *data, int64_t data_size, rm_json_array *array);

/* json_values.cpp: of values on a tape. What faults says stands at fields.cpp. */

/* Writes the numbers at the entries, 0 for what is none, and faults: INEXACT where so many bits can't hold a whole
   number, BEYOND_RANGE, UNDECIDED. */
int64_t rm_parse_json_floats(const uint8_t *data, int64_t data_size, const int32_t *tape, int64_t tape_size,
                             const int32_t *entries, int64_t entries_size, int64_t bits, double *values,
                             int64_t values_size, uint8_t *faults, int64_t faults_size);
/* The same of whole numbers of 64 bits, however they are written (5, 5.0, 5e0). A fault: BEYOND_RANGE. */
int64_t rm_parse_json_integers(const uint8_t *data, int64_t data_size, const int32_t *tape, int64_t tape_size,
                               const int32_t *entries, int64_t entries_size, int64_t is_unsigned, int64_t *values,
                               int64_t values_size, uint8_t *faults, int64_t faults_size);
/* Numbers that float32 changes, or can't hold, and whole ones beyond int64. */
enum { RM_JSON_DECIMAL, RM_JSON_INTEGER, RM_JSON_BEYOND_INT64, RM_JSON_OVERFLOW, RM_JSON_LOSSES };
/* Adds up, of each node, counts [nodes, JSON_KINDS], losses [nodes, JSON_LOSSES] and the classes [nodes] of strings that
   have no escape (times, or text). first [nodes, JSON_KINDS]: the entry where a count became 1. */
int64_t rm_count_json_values(const uint8_t *data, int64_t data_size, const int32_t *tape, int64_t tape_size,
                             int64_t *counts, int64_t counts_size, int64_t *first, int64_t first_size, int64_t *losses,
                             int64_t losses_size, int64_t *classes, int64_t classes_size);

/* csv.cpp */

enum { RM_CSV_TOO_LONG = -1, RM_CSV_STRAY_QUOTE = -2 }; /* widths of bad rows: longer than max_row_bytes, or a quote is
                                                          never closed; a field goes on after its closing quote */
/* The bytes that mean something: each is a byte, or 256 where there is none. columns: 0 if only rows are wanted, not
 * their fields. is_ragged: rows with fewer fields are no bad ones. */
typedef struct {
  int64_t delimiter, quote, is_doubled, escape, comment, trim, max_row_bytes, columns, is_ragged, is_lenient;
} rm_csv_dialect;
/* at: where a row starts, or is_skipping: in a line to skip; then where the next row starts. line: the physical line
 * there. limit: the first byte where no row is to start. is_final: the data ends with a row or the file. The others are
 * results: rows, bad ones, blank lines that are no rows; of the rows, the fields in quotes, the rows that needed
 * them, since their lines would be no rows without; the rows across lines of which each would be one, and the first of
 * their lines. */
typedef struct {
  int64_t at, line, limit, is_final, is_skipping, rows, bad, blanks, quoted_fields, needed, across, first_across;
} rm_csv_scan;
/* Reads rows until the arrays are full, a row starts at the limit or later, or the data ends; unescapes fields in
 * place. starts, infos: [columns, n], of fields as in fields.cpp. rows: [3, n], fields, ordinal and line. bad: [m, 6],
 * ordinal, line, start, fields or CSV_TOO_LONG ..., the start of the field that is wrong, and 1 if the row's lines would
 * be rows without quotes. */
int64_t rm_scan_csv(uint8_t *data, int64_t data_size, const rm_csv_dialect *dialect, rm_csv_scan *scan, int32_t *starts,
                    int64_t starts_size, int32_t *infos, int64_t infos_size, int64_t *rows, int64_t rows_size,
                    int64_t *bad, int64_t bad_size);

/* fields.cpp: columns of text fields. A field is data[start, start + length); an info is its length and flags. The texts
 * that stand for a null lie one after the other in tokens, token i ends at token_ends[i]. valid and fault come in as 1
 * and 0 in every row: valid becomes 0 where there is a null, fault says why a field has no value. */

enum { RM_FIELD_LENGTH = 0x0FFFFFFF, RM_FIELD_QUOTED = 0x20000000 }; /* what an info holds */
enum { /* what a text is by itself, as bits that are joined over a column; a timestamp's unit is the least it needs */
  RM_BOOL_CLASS = 1,
  RM_INT64_CLASS = 2,
  RM_FLOAT32_CLASS = 4,
  RM_SECONDS_CLASS = 8,
  RM_MILLIS_CLASS = 16,
  RM_MICROS_CLASS = 32,
  RM_NANOS_CLASS = 64,
  RM_NAIVE_CLASS = 128, /* a timestamp without a time zone, and one with */
  RM_AWARE_CLASS = 256,
  RM_BEYOND_NANOS_CLASS = 512, /* a timestamp before 1677-09-21 or after 2262-04-11 */
  RM_TEXT_CLASS = 1024
};
enum { /* what fault says of a field */
  RM_FITS,
  RM_WRONG_TYPE,
  RM_BEYOND_RANGE,
  RM_INEXACT,
  RM_UNDECIDED, /* Python's float() must tell */
  RM_NO_ZONE,
  RM_HAS_ZONE,
  RM_TOO_FINE,
  RM_FIELD_NOT_UTF8,
  RM_NO_CLASS,
  RM_NO_VALUE
};
/* Of a column that was parsed. */
typedef struct { int64_t nulls, faults; } rm_field_totals;
/* Of a column that is inferred, added up over calls. soft_nulls: quoted null tokens, which are among the values too;
 * inexact_decimals, inexact_integers, overflows: values that float32 does not hold. */
typedef struct {
  int64_t classes, values, soft_nulls, inexact_decimals, inexact_integers, overflows;
} rm_column_counts;
/* Of a column that has texts among other values. classes: of the others; different: texts, at most one more than there
 * was room for. */
typedef struct { int64_t texts, values, classes, different; } rm_text_totals;

/* Counts what fields are, and each null token in null_counts. A column that is known as text is not classified. */
int64_t rm_infer_fields(const uint8_t *data, int64_t data_size, const int32_t *starts, int64_t starts_size,
                        const int32_t *infos, int64_t infos_size, const uint8_t *tokens, int64_t tokens_size,
                        const int64_t *token_ends, int64_t token_ends_size, rm_column_counts *counts,
                        int64_t *null_counts, int64_t null_counts_size);
/* The same up to the first field that is no plain value of the dtype, with the values; gives how many fields. */
int64_t rm_infer_integers(const uint8_t *data, int64_t data_size, const int32_t *starts, int64_t starts_size,
                          const int32_t *infos, int64_t infos_size, const uint8_t *tokens, int64_t tokens_size,
                          const int64_t *token_ends, int64_t token_ends_size, rm_column_counts *counts,
                          int64_t *null_counts, int64_t null_counts_size, int64_t *values, int64_t values_size,
                          uint8_t *valid, int64_t valid_size, rm_field_totals *totals);
int64_t rm_infer_floats(const uint8_t *data, int64_t data_size, const int32_t *starts, int64_t starts_size,
                        const int32_t *infos, int64_t infos_size, const uint8_t *tokens, int64_t tokens_size,
                        const int64_t *token_ends, int64_t token_ends_size, rm_column_counts *counts,
                        int64_t *null_counts, int64_t null_counts_size, double *values, int64_t values_size,
                        uint8_t *valid, int64_t valid_size, rm_field_totals *totals);
int64_t rm_infer_timestamps(const uint8_t *data, int64_t data_size, const int32_t *starts, int64_t starts_size,
                            const int32_t *infos, int64_t infos_size, const uint8_t *tokens, int64_t tokens_size,
                            const int64_t *token_ends, int64_t token_ends_size, int64_t nanos_per_unit,
                            int64_t is_aware, rm_column_counts *counts, int64_t *null_counts, int64_t null_counts_size,
                            int64_t *values, int64_t values_size, uint8_t *valid, int64_t valid_size,
                            rm_field_totals *totals);
/* Whole numbers in [low, high], however they are written: 5, 5.0, 5e0. */
int64_t rm_parse_integers(const uint8_t *data, int64_t data_size, const int32_t *starts, int64_t starts_size,
                          const int32_t *infos, int64_t infos_size, const uint8_t *tokens, int64_t tokens_size,
                          const int64_t *token_ends, int64_t token_ends_size, int64_t low, int64_t high,
                          int64_t *values, int64_t values_size, uint8_t *valid, int64_t valid_size, uint8_t *fault,
                          int64_t fault_size, rm_field_totals *totals);
/* Decimals, rounded to float64. A whole number needs at most `bits` significant bits; values from `beyond` on are out
 * of range. */
int64_t rm_parse_floats(const uint8_t *data, int64_t data_size, const int32_t *starts, int64_t starts_size,
                        const int32_t *infos, int64_t infos_size, const uint8_t *tokens, int64_t tokens_size,
                        const int64_t *token_ends, int64_t token_ends_size, int64_t bits, double beyond,
                        double *values, int64_t values_size, uint8_t *valid, int64_t valid_size, uint8_t *fault,
                        int64_t fault_size, rm_field_totals *totals);
/* Truth values, and 1 and 0. */
int64_t rm_parse_booleans(const uint8_t *data, int64_t data_size, const int32_t *starts, int64_t starts_size,
                          const int32_t *infos, int64_t infos_size, const uint8_t *tokens, int64_t tokens_size,
                          const int64_t *token_ends, int64_t token_ends_size, uint8_t *values, int64_t values_size,
                          uint8_t *valid, int64_t valid_size, uint8_t *fault, int64_t fault_size,
                          rm_field_totals *totals);
/* Timestamps with or without time zone, in units since 1970. */
int64_t rm_parse_timestamps(const uint8_t *data, int64_t data_size, const int32_t *starts, int64_t starts_size,
                            const int32_t *infos, int64_t infos_size, const uint8_t *tokens, int64_t tokens_size,
                            const int64_t *token_ends, int64_t token_ends_size, int64_t nanos_per_unit,
                            int64_t is_aware, int64_t *values, int64_t values_size, uint8_t *valid, int64_t valid_size,
                            uint8_t *fault, int64_t fault_size, rm_field_totals *totals);
/* How many bytes all fields have together. */
int64_t rm_text_bytes(const int32_t *infos, int64_t infos_size);
/* Texts as Arrow holds them: out[offsets[i], offsets[i + 1]). Without fault they need not be UTF-8. */
int64_t rm_parse_texts(const uint8_t *data, int64_t data_size, const int32_t *starts, int64_t starts_size,
                       const int32_t *infos, int64_t infos_size, const uint8_t *tokens, int64_t tokens_size,
                       const int64_t *token_ends, int64_t token_ends_size, int64_t *offsets, int64_t offsets_size,
                       uint8_t *out, int64_t out_size, uint8_t *valid, int64_t valid_size, uint8_t *fault,
                       int64_t fault_size, rm_field_totals *totals);
/* Counts the different texts of a column: the row where each stands first, and how many fields are that text. */
int64_t rm_count_texts(const uint8_t *data, int64_t data_size, const int32_t *starts, int64_t starts_size,
                       const int32_t *infos, int64_t infos_size, const uint8_t *tokens, int64_t tokens_size,
                       const int64_t *token_ends, int64_t token_ends_size, int64_t *first, int64_t first_size,
                       int64_t *counts, int64_t counts_size, rm_text_totals *totals);

/* images.cpp */

/* What the walk through a JPEG stopped at; RM_JPEG_OTHER: it does not begin as one. */
enum {
  RM_JPEG_GOOD,
  RM_JPEG_CUT,
  RM_JPEG_NO_END,
  RM_JPEG_LENGTH,
  RM_JPEG_TWICE,
  RM_JPEG_NO_FRAME,
  RM_JPEG_NO_SCAN,
  RM_JPEG_FRAME,
  RM_JPEG_OTHER
};
/* What is known of a JPEG; the place: of the marker where the walk stopped; the marker: that of the frame header. */
enum {
  RM_JPEG_HEIGHT,
  RM_JPEG_WIDTH,
  RM_JPEG_COMPONENTS,
  RM_JPEG_BITS,
  RM_JPEG_PLACE,
  RM_JPEG_MARKER,
  RM_JPEG_SCANS,
  RM_JPEG_FACTS
};
/* Walks through images that stand one after the other. facts [n, RM_JPEG_FACTS]: 0 before; codes [n]. */
int64_t rm_walk_jpegs(const uint8_t *data, int64_t data_size, const int64_t *ends, int64_t ends_size, int64_t *facts,
                      int64_t facts_size, int64_t *codes, int64_t codes_size);

/* A part of pixels: line numbers stand in each of their lines; the part has so many rows from top on, of so many columns
 * (numbers) from start on. What is made of it goes to bytes, rounded, or to floats, as number * factor - offset: the
 * other is NULL. factor, offset: for each number of a line wanted. room: for lines; as many numbers as are said. */
typedef struct {
  int64_t line, top, rows, start, columns;
} rm_pixel_part;
/* The part as it is. room: [a line wanted]. */
int64_t rm_convert_pixels(const uint8_t *pixels, int64_t pixels_size, const rm_pixel_part *part, const float *factor,
                          int64_t factor_size, const float *offset, int64_t offset_size, float *room,
                          int64_t room_size, uint8_t *bytes, int64_t bytes_size, float *floats, int64_t floats_size);
/* above, below: the rows on both sides of each row wanted, down: the weight of the one below; lower, upper, along: the
 * same of each number of a line. room: [3 lines wanted, a line of the part]. */
int64_t rm_resize_bilinear(const uint8_t *pixels, int64_t pixels_size, const rm_pixel_part *part,
                           const uint32_t *above, int64_t above_size, const uint32_t *below, int64_t below_size,
                           const float *down, int64_t down_size, const uint32_t *lower, int64_t lower_size,
                           const uint32_t *upper, int64_t upper_size, const float *along, int64_t along_size,
                           const float *factor, int64_t factor_size, const float *offset, int64_t offset_size,
                           float *room, int64_t room_size, uint8_t *bytes, int64_t bytes_size, float *floats,
                           int64_t floats_size);
/* rows, row_weights [most, rows wanted], columns, column_weights [most, numbers of a line wanted]: of which source rows
 * and numbers each one wanted is the sum. room: [a line wanted, a line of the part]. */
int64_t rm_resize_antialiased(const uint8_t *pixels, int64_t pixels_size, const rm_pixel_part *part,
                              const uint32_t *rows, int64_t rows_size, const float *row_weights,
                              int64_t row_weights_size, const uint32_t *columns, int64_t columns_size,
                              const float *column_weights, int64_t column_weights_size, const float *factor,
                              int64_t factor_size, const float *offset, int64_t offset_size, float *room,
                              int64_t room_size, uint8_t *bytes, int64_t bytes_size, float *floats,
                              int64_t floats_size);

/* statistics.cpp */

/* The digits of sums of floats and of their squares, in two's complement; in units of 2^-1074 and 2^-2148. */
enum { RM_SUM_DIGITS = 70, RM_SQUARE_DIGITS = 138 };
/* least, most: of the finite values; they and the counts go on from what they are. */
typedef struct {
  int64_t zeros, nans, plus_infinities, minus_infinities;
  double least, most;
} rm_float_facts;
/* Adds up the finite values and makes their keys, 64 bits that are in the order of the values; gives how many. */
int64_t rm_count_floats(const double *values, int64_t values_size, rm_float_facts *facts, uint32_t *sum,
                        int64_t sum_size, uint32_t *squares, int64_t squares_size, uint64_t *keys, int64_t keys_size);
/* Adds up integers and their squares: sum [4 or more], squares [6 or more]. */
int64_t rm_sum_integers(const uint64_t *values, int64_t values_size, int64_t is_signed, uint32_t *sum,
                        int64_t sum_size, uint32_t *squares, int64_t squares_size);
int64_t rm_sort_keys(uint64_t *keys, int64_t keys_size, uint64_t *room, int64_t room_size);
/* Merges two ascending lists of keys with their counts (of the others: 1 each without other_counts). `level` low bits
 * of all keys are 0: as given, or more, as few as leave at most `most` keys. Gives size << 6 | level. */
int64_t rm_merge_bins(const uint64_t *keys, int64_t keys_size, const int64_t *counts, int64_t counts_size,
                      const uint64_t *others, int64_t others_size, const int64_t *other_counts,
                      int64_t other_counts_size, int64_t most, int64_t level, uint64_t *out, int64_t out_size,
                      int64_t *out_counts, int64_t out_counts_size);
/* Hashes of which none is 0; that of a number says which it is. */
int64_t rm_hash_numbers(const uint64_t *bits, int64_t bits_size, uint64_t *out, int64_t out_size);
int64_t rm_hash_texts(const uint8_t *data, int64_t data_size, const int64_t *starts, int64_t starts_size,
                      const int64_t *ends, int64_t ends_size, uint64_t *out, int64_t out_size);
/* Counts hashes from the first one on that are at most the threshold, in a table with open addresses; places: where a
 * hash that was not in the table stands. Gives used << 32 | how many were looked at: all, or as many as three quarters
 * of the slots have room for. */
int64_t rm_count_hashes(const uint64_t *hashes, int64_t hashes_size, int64_t first, uint64_t threshold, int64_t used,
                        uint64_t *slots, int64_t slots_size, int64_t *counts, int64_t counts_size, int32_t *places,
                        int64_t places_size);
/* Puts hashes that are not in the table into it. */
int64_t rm_put_hashes(const uint64_t *hashes, int64_t hashes_size, const int64_t *some, int64_t some_size,
                      const int32_t *firsts, int64_t firsts_size, uint64_t *slots, int64_t slots_size,
                      int64_t *counts, int64_t counts_size, int32_t *places, int64_t places_size);

#ifdef __cplusplus
}
#endif

#endif
