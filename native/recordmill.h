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

/* library.cpp */

/* The instruction set that this build of the library may use: 0 the processor family's first, 3 x86-64-v3. */
int64_t rm_built_level(void);
/* The instruction set that this machine has, in the same numbers. */
int64_t rm_machine_level(void);

/* crc32c.cpp */

/* The CRC32C of data, going on from the CRC of what stood before it (0 at the start). */
int64_t rm_crc32c(const uint8_t *data, int64_t data_size, int64_t crc);

#ifdef __cplusplus
}
#endif

#endif
