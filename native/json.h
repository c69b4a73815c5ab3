// What the scan of JSON and the columns that are made of its tapes share.
#ifndef RECORDMILL_JSON_H
#define RECORDMILL_JSON_H

#include "common.h"

namespace rm {

RM_INLINE int32_t node_of(const JsonValue &value) { return value.head >> 4; }
RM_INLINE int kind_of(const JsonValue &value) { return value.head & 15; }

// Writes the text of a checked string as UTF-8, which is never longer than its escapes; returns its length.
int64_t unescape(ByteSpan data, int64_t start, int64_t stop, uint8_t *into);

}  // namespace rm

#endif
