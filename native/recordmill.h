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

#ifdef __cplusplus
}
#endif

#endif
